"""Logs and metrics: what the processes say about themselves."""
