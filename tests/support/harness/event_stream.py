"""Reading server-sent events as a browser does."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx2

from harness.site import Site


class Event(NamedTuple):
    number: int
    kind: str
    data: Any


class Reader:
    """The events of one open answer."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self.comments = 0
        self._lines = response.iter_lines()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        fields: dict[str, str] = {}
        for line in self._lines:
            if line.startswith(":"):
                self.comments += 1
            elif line:
                name, _, value = line.partition(": ")
                fields[name] = f"{fields[name]}\n{value}" if name in fields else value
            elif fields:
                return Event(int(fields["id"]), fields["event"], json.loads(fields["data"]))
        assert not fields, f"the stream ended inside an event: {fields}"
        raise StopIteration

    def next(self, kind: str) -> Event:
        """The next event, which must be of that kind."""
        event = next(self)
        assert event.kind == kind, event
        return event


@contextlib.contextmanager
def reading(site: Site, job_id: str, query: str = "", **headers: str) -> Iterator[Reader]:
    """The events of a job while they happen."""
    path = f"/jobs/{job_id}/events{query}"
    with site.client.stream("GET", path, headers=site.headers(**headers)) as response:
        assert response.status_code == 200, response.read()
        yield Reader(response)


def all_events(site: Site, job_id: str, query: str = "", **headers: str) -> list[Event]:
    """The events of a job up to the end of the stream."""
    with reading(site, job_id, query, **headers) as reader:
        return list(reader)
