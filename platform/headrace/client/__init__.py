"""The Python client: one call, one answer, one kind of error per way to fail."""

from __future__ import annotations

from headrace.client.client import Client, Job, Page
from headrace.client.errors import CallRefused, ClientError, Restarted, Unreachable
from headrace.client.events import PATIENCE_S, Event
from headrace.client.streams import Stream

__all__ = [
    "PATIENCE_S",
    "CallRefused",
    "Client",
    "ClientError",
    "Event",
    "Job",
    "Page",
    "Restarted",
    "Stream",
    "Unreachable",
]
