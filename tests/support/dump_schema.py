"""Write `sql/schema.sql` from a database that was made by the migrations."""

from __future__ import annotations

from harness import postgres, schema

if __name__ == "__main__":
    with postgres.server() as url, postgres.clones(url) as clones, clones.migrated() as database_url:
        schema.SCHEMA_FILE.write_text(schema.dump(database_url))
