"""How much was asked for and done, minute by minute: counted in every process, added up in Postgres."""
