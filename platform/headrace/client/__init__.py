"""The Python client: one call, one answer, one kind of error per way to fail."""

from __future__ import annotations

from headrace.client.client import Client
from headrace.client.errors import CallRefused, ClientError, Unreachable

__all__ = ["CallRefused", "Client", "ClientError", "Unreachable"]
