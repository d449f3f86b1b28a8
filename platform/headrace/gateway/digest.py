"""What tells that two inputs are the same."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

_sorted_json = msgspec.json.Encoder(order="deterministic").encode


def digest_of(value: Any) -> bytes:
    """SHA-256 of an input, whatever the order of its keys."""
    return hashlib.sha256(_sorted_json(value)).digest()
