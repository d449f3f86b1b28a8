"""Helpers that tests share, importable as `harness` (pytest's `pythonpath` names the folder above)."""
