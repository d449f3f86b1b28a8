"""The fixtures themselves: isolation, and that a leaked connection fails its test."""

from __future__ import annotations

import psycopg
import pytest
from harness.postgres import Clones, query


def test_clones_share_nothing(clones: Clones) -> None:
    with clones.migrated() as one, clones.migrated() as other:
        query(one, "INSERT INTO owner (name) VALUES ('ada')")
        assert query(other, "SELECT count(*) FROM owner") == [(0,)]


def test_leaked_connection_is_an_error(clones: Clones) -> None:
    leaked: list[psycopg.Connection] = []
    with pytest.raises(AssertionError, match=r"connections left open.*careless"), clones.migrated() as url:
        leaked.append(psycopg.connect(url, application_name="careless"))
    leaked[0].close()
