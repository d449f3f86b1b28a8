"""Which models each executor holds, under one memory budget; executors only do what is decided here.

`book` knows what is where, `plan` decides, `failures` and `waits` remember and foretell; none of them does
anything. `residence` reads the clock, tells executors, and watches them.
"""
