"""What Schemathesis does before each request; see test_openapi.py."""

from __future__ import annotations

import uuid
from typing import Any

import schemathesis


@schemathesis.hook
def before_call(_context: Any, case: Any, **_: Any) -> None:
    """Make the idempotency key of each good call a new one: of one key, another input is refused."""
    # Bad calls stay as they are: a case that is changed is checked as if nothing had been left out of it.
    if case.meta.generation.mode.is_positive and "Idempotency-Key" in (case.headers or {}):
        case.headers["Idempotency-Key"] = str(uuid.uuid4())
