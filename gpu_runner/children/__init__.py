"""The processes of executors, from outside: started, spoken to, killed, buried with what they leave."""
