from __future__ import annotations

from harness import schema


def test_committed_schema_is_what_the_migrations_make(database_url: str) -> None:
    remedy = "sql/schema.sql is out of date: run `python tests/support/dump_schema.py` and review the change"
    assert schema.SCHEMA_FILE.read_text() == schema.dump(database_url), remedy
