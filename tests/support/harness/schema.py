"""The committed picture of the schema, and how it is made."""

from __future__ import annotations

import subprocess
from pathlib import Path

from headrace.embedded.cluster import programs

SCHEMA_FILE = Path(__file__).parents[3] / "sql" / "schema.sql"

_HEADER = """\
-- The schema that the migrations make, for reading and for reviewing changes; nothing executes this file.
-- Procrastinate's objects are in it: pg_dump can't leave functions and types out, and a release of theirs
-- that changes them should be seen here. Made by `python tests/support/dump_schema.py`.
"""
_VARYING = ("-- Dumped from database version", "-- Dumped by pg_dump version")


def dump(url: str) -> str:
    """A database's schema as SQL, the same on every machine."""
    command = (
        str(programs() / "bin" / "pg_dump"),
        "--schema-only",
        "--no-owner",
        "--no-privileges",
        "--restrict-key=headrace",
        f"--dbname={url}",
    )
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return _HEADER + "\n".join(line for line in output.splitlines() if not line.startswith(_VARYING)) + "\n"
