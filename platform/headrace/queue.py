"""The only module that imports procrastinate: its schema now, its jobs later."""

from __future__ import annotations

from importlib import metadata
from typing import Final, LiteralString

SCHEMA_VERSION: Final = "3.10"
"""The minor version of Procrastinate whose schema the database holds."""


def installed_version() -> str:
    """The version of the installed Procrastinate, e.g. "3.10.0"; read without importing it."""
    return metadata.version("procrastinate")


def schema() -> LiteralString:
    """The SQL that Procrastinate ships for an empty database: one script of many statements."""
    from procrastinate.schema import SchemaManager  # noqa: PLC0415 - 50 ms that an up-to-date database needn't pay

    return SchemaManager.get_schema()
