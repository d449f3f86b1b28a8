"""A Postgres server of a test's own, to be killed, stopped and started again."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from harness.postgres import wait_until
from harness.prepared import put_data
from headrace.embedded import EmbeddedPostgres
from headrace.embedded.postmaster import Postmaster, is_used


class OwnPostgres:
    """A running server with a migrated database.

    Its settings are those of production: unlike the session's server it loses nothing in a crash.
    """

    def __init__(self, home: Path) -> None:
        self._embedded = EmbeddedPostgres(home)
        self.url = self._embedded.url

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        self._embedded.start()

    def is_running(self) -> bool:
        return self._embedded.is_running()

    def stop(self) -> None:
        """Stop it as an operator does; what is connected loses its connection."""
        self._embedded.stop()

    def crash(self) -> None:
        """Kill all of its processes at once, as a machine that loses its power does."""
        postmaster = self._postmaster()
        postmaster.suspend()  # it neither sees its children die nor makes new ones
        everyone = [*postmaster.children(recursive=True), postmaster]
        for process in everyone:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert wait_until(lambda: not is_used(self._embedded.data), seconds=10)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all of its processes in their tracks meanwhile."""
        postmaster = self._postmaster()
        everyone = [postmaster, *postmaster.children(recursive=True)]
        for process in everyone:
            process.suspend()
        try:
            yield
        finally:
            for process in everyone:
                process.resume()

    def _postmaster(self) -> psutil.Process:
        found = Postmaster.read(self._embedded.data)
        assert found is not None, "the server doesn't run"
        return psutil.Process(found.pid)


@contextlib.contextmanager
def own_postgres() -> Iterator[OwnPostgres]:
    """A server that runs; it is stopped and removed at the end, whatever state it is in by then."""
    # Short, for the socket's path, and open, for the user that Postgres runs as under root.
    folder = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp")).resolve()
    server = OwnPostgres(folder)
    try:
        put_data(folder)
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
