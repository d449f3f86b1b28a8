"""Calls that running calls make of other functions: each is a job of the same owner."""
