"""What the ledger says of a submission."""

from __future__ import annotations

from typing import Any

from headrace.ledger.submission import Receipt


def receipt_of(job_id: str, outcome: Any, **more: Any) -> Receipt:
    """A receipt with that outcome, and what else it is to say."""
    return Receipt(
        job_id=job_id,
        outcome=outcome,
        state="queued" if outcome in ("accepted", "replayed") else None,
        created_at=None,
        queue_deadline_at=None,
        deadline_at=None,
        outstanding=0,
        **more,
    )
