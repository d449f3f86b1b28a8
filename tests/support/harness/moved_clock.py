"""A clock that a test sets while processes that started under it run, by Debian's package `faketime`."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.embedded import cluster

_LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))


class MovedClock:
    """How far the clock of some processes is from this machine's; what only measures time is left alone.

    Args:
        folder: for the file that says so, readable by everybody.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "moved"
        self.move(0)

    @property
    def environment(self) -> dict[str, str]:
        """What puts a process under this clock."""
        return {
            "LD_PRELOAD": str(_LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",  # its older name
        }

    def move(self, seconds: int) -> None:
        """Set it so far ahead of this machine's."""
        written = self._file.with_suffix(".new")
        written.write_text(f"{seconds:+d}\n")
        written.chmod(0o644)
        written.replace(self._file)  # at once: it may be read at any time

    @contextlib.contextmanager
    def over_postgres(self) -> Iterator[None]:
        """Put embedded servers that are started meanwhile under this clock."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                patch.setitem(cluster.ENVIRONMENT, name, value)
            yield


@contextlib.contextmanager
def moved_clock() -> Iterator[MovedClock]:
    """A clock that agrees with this machine's until it is moved; skips the test where there can't be one."""
    if not _LIBRARIES:
        pytest.skip("libfaketime isn't installed (Debian's package is faketime)")
    with tempfile.TemporaryDirectory(prefix="hr-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)  # the user that Postgres runs as under root reads it too
        yield MovedClock(Path(folder))
