"""Somebody who saves files while `headrace dev` runs, and calls what is served."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from harness.site import eventually
from harness.up import Folder, Up, session_leaders
from headrace.client import CallRefused, Client, Unreachable

HEAD = """
import time
from headrace import function, model, uses
from pydantic import BaseModel

class Text(BaseModel):
    text: str
"""
TELL = """
@function(examples=[{{"text": "x"}}])
def tell(input: Text) -> str:
    return "{answer}"
"""
SERVING = "serving the new version"

_numbers = itertools.count()


class Developer:
    """Has one module with one function, `tell`, at first."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.file = folder.path / "mine.py"
        self.answers("one")

    def save(self, *parts: str) -> None:
        """As editors do: a new file in the place of the old one."""
        draft = self.file.with_name(".mine.py.new")
        draft.write_text("".join(parts))
        draft.replace(self.file)

    def answers(self, text: str) -> None:
        self.save(HEAD, TELL.format(answer=text))

    def begin_anew(self, dev: Up) -> str:
        """Have a version served that nobody has had yet, whatever was there; returns what `tell` says."""
        answer = f"version {next(_numbers)}"
        self.answers(answer)
        eventually(lambda: self._answer() == answer, "the new version answers")
        dev.until(SERVING)
        return answer

    def _answer(self) -> object:
        try:
            return self.call()
        except (CallRefused, Unreachable):
            return None

    @contextmanager
    def dev(self, *options: str, **environment: str) -> Iterator[Up]:
        with self.folder.up(*options, command="dev", **environment) as running:
            running.ready()
            yield running
            if running.process.poll() is None:
                assert running.stop() == 0
            assert "Traceback" not in running.said

    def client(self) -> Client:
        key = (self.folder.home / "key").read_text().strip()
        return Client(f"http://127.0.0.1:{self.folder.port}", key)

    def call(self, function: str = "tell", **given: object) -> object:
        with self.client() as client:
            return client.call(function, given or {"text": "x"})

    def runners(self) -> list[int]:
        """All runners, those that wait for their turn among them."""
        return session_leaders(self.folder, "gpu_runner.spare")

    def refused(self, function: str) -> int:
        with pytest.raises(CallRefused) as caught:
            self.call(function)
        return caught.value.status
