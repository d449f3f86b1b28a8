"""Measures one function in real executors, without a gateway or Postgres, and says how to serve it.

`headrace bench` starts it; see docs/operations.md.
"""
