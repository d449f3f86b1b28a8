"""Between Python and Postgres: named queries, a pool of connections, and the one LISTEN connection.

SQL lives in `sql/`; here it is only named. Trouble with a connection surfaces as `DatabaseUnavailable`,
anything else that Postgres refuses as `DatabaseError` with the psycopg error as its cause.
"""

from __future__ import annotations

from psycopg.types.json import Jsonb

from headrace.database.listener import Listener
from headrace.database.pool import ANSWER_WITHIN, Database, Row, Transaction, within
from headrace.database.queries import queries

__all__ = ["ANSWER_WITHIN", "Database", "Jsonb", "Listener", "Row", "Transaction", "queries", "within"]
