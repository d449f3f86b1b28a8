"""An executor in a process of its own, spoken to without a supervisor."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from gpu_runner.children.executors import start_fork_server
from gpu_runner.executor import main
from gpu_runner.executor.main import ExecutorConfig
from gpu_runner.frames import (
    INTERRUPT,
    Done,
    Failed,
    FromExecutor,
    Interrupt,
    Ready,
    Reported,
    Run,
    Stop,
    decode_from_executor,
)
from headrace.link.stream import pack

HERE = str(Path(__file__).parent)
PATIENCE_S = 20.0

_ids = itertools.count()


class Child:
    """The supervisor's end of one executor."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        self.reported: list[Reported] = []
        self._socket = connection
        self._received = b""
        self.ready: Any = self._frame()
        assert isinstance(self.ready, Ready)

    def send(self, *frames: Any) -> None:
        self._socket.sendall(b"".join(map(pack, frames)))

    def run(self, function: str, *, soft: float = 50.0, left: float = 100.0, **input: Any) -> str:
        """Start a call; returns its id."""
        job_id = f"job-{next(_ids)}"
        data = msgspec.json.encode(input)
        self.send(Run(job_id, function, data, 1, soft, time.monotonic() + left))
        return job_id

    def stop(self, job_id: str) -> None:
        self.send(Stop(job_id, 1))

    def interrupt(self, job_id: str) -> None:
        """What the supervisor does to a body that goes on."""
        self.send(Interrupt(job_id, 1))
        os.kill(self.pid, INTERRUPT)

    def answer(self, job_id: str = "") -> Any:
        """The next answer, which has to be of that call."""
        while isinstance(frame := self._frame(), Reported):
            self.reported.append(frame)
        assert isinstance(frame, Done | Failed)
        assert job_id in ("", frame.job_id), f"{frame} isn't for {job_id}"
        return frame

    def value(self, function: str, **options: Any) -> Any:
        answer = self.answer(self.run(function, **options))
        assert isinstance(answer, Done), answer
        return msgspec.json.decode(answer.output)

    def _frame(self) -> FromExecutor:
        while len(self._received) < 4 or len(self._received) < self._end():
            if not (chunk := self._socket.recv(2**20)):
                raise EOFError
            self._received += chunk
        end = self._end()
        frame = decode_from_executor(self._received[4:end])
        self._received = self._received[end:]
        return frame

    def _end(self) -> int:
        return 4 + int.from_bytes(self._received[:4], "big")


def until(path: Path, text: str) -> None:
    """Wait until a body has written that."""
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < deadline, f"{path} never said {text}"
        time.sleep(0.002)


@contextmanager
def child(*modules: str, threads: int = 1) -> Iterator[Child]:
    """An executor that is ready."""
    context = start_fork_server(())
    config = ExecutorConfig(functions=modules, device="cpu", threads=threads, path=(*sys.path, HERE))
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = context.Process(target=main.run, args=(theirs, msgspec.json.encode(config)))
            process.start()
        assert process.pid is not None
        try:
            ours.settimeout(PATIENCE_S)
            yield Child(ours, process.pid)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            process.close()
