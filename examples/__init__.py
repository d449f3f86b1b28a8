"""Functions to read and to copy: each is one file with one idea, and runs by the line in its header."""
