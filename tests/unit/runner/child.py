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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gpu_runner.children.executors import start_fork_server
from gpu_runner.executor import main
from gpu_runner.executor.main import ExecutorConfig
from gpu_runner.frames import (
    INTERRUPT,
    AboutModels,
    BatchEnded,
    BatchItem,
    Done,
    Failed,
    FromExecutor,
    Interrupt,
    Ready,
    Reported,
    Run,
    RunBatch,
    Stop,
    decode_from_executor,
)
from headrace.link.stream import pack

HERE = str(Path(__file__).parent)
PATIENCE_S = 20.0

_ids = itertools.count()


@dataclass
class Batch:
    """Joined calls, and what has become of them."""

    job_id: str
    ids: list[str]
    answers: dict[str, Done | Failed] = field(default_factory=dict)
    passes: tuple[int, ...] = ()
    too_many: int = 0

    @property
    def outcomes(self) -> list[Any]:
        """Of each call in order: its output, or the category of its failure."""
        answers = [self.answers[one] for one in self.ids]
        return [msgspec.json.decode(one.output) if isinstance(one, Done) else one.category for one in answers]

    def failure(self, number: int) -> Failed:
        """How that call has failed."""
        answer = self.answers[self.ids[number]]
        assert isinstance(answer, Failed), answer
        return answer


class Child:
    """The supervisor's end of one executor."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        self.reported: list[Reported] = []
        self._socket = connection
        self._received = b""
        self.models: list[AboutModels] = []
        self.ready: Any = self._beside_models()
        assert isinstance(self.ready, Ready)

    def send(self, *frames: Any) -> None:
        self._socket.sendall(b"".join(map(pack, frames)))

    def run(self, function: str, *, soft: float = 50.0, left: float = 100.0, **input: Any) -> str:
        """Start a call; returns its id."""
        job_id = f"job-{next(_ids)}"
        data = msgspec.json.encode(input)
        self.send(Run(job_id, function, data, 1, soft, time.monotonic() + left))
        return job_id

    def run_batch(
        self, function: str, *inputs: dict[str, Any], soft: float = 50.0, left: float = 100.0
    ) -> Batch:
        """Start joined calls."""
        ids = [f"job-{next(_ids)}" for _ in inputs]
        deadline_at = time.monotonic() + left
        items = tuple(
            BatchItem(job_id, msgspec.json.encode(value), 1, deadline_at)
            for job_id, value in zip(ids, inputs, strict=True)
        )
        batch = Batch(f"batch-{next(_ids)}", ids)
        self.send(RunBatch(batch.job_id, function, items, soft))
        return batch

    def stop(self, job_id: str) -> None:
        self.send(Stop(job_id, 1))

    def interrupt(self, job_id: str) -> None:
        """What the supervisor does to a body that goes on."""
        self.send(Interrupt(job_id, 1))
        os.kill(self.pid, INTERRUPT)

    def answer(self, job_id: str = "") -> Any:
        """The next answer, which has to be of that call."""
        while isinstance(frame := self._beside_models(), Reported):
            self.reported.append(frame)
        assert isinstance(frame, Done | Failed)
        assert job_id in ("", frame.job_id), f"{frame} isn't for {job_id}"
        return frame

    def end(self, batch: Batch) -> Batch:
        """Take what becomes of joined calls, each once, until all have ended."""
        while not isinstance(frame := self._beside_models(), BatchEnded):
            if isinstance(frame, Reported):
                self.reported.append(frame)
                continue
            assert isinstance(frame, Done | Failed)
            assert frame.job_id in batch.ids
            assert frame.job_id not in batch.answers, f"{frame} is a second answer"
            batch.answers[frame.job_id] = frame
        assert frame.job_id == batch.job_id
        assert batch.answers.keys() == set(batch.ids)
        batch.passes = frame.passes
        batch.too_many = frame.too_many
        return batch

    def value(self, function: str, **options: Any) -> Any:
        answer = self.answer(self.run(function, **options))
        assert isinstance(answer, Done), answer
        return msgspec.json.decode(answer.output)

    def about_models(self) -> Any:
        """The next frame about a model."""
        frame = self._frame()
        assert isinstance(frame, AboutModels)
        return frame

    def _beside_models(self) -> FromExecutor:
        while isinstance(frame := self._frame(), AboutModels):
            self.models.append(frame)
        return frame

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
def child(*modules: str, threads: int = 1, nice: int = 0) -> Iterator[Child]:
    """An executor that is ready."""
    context = start_fork_server(())
    path = (*sys.path, HERE)
    config = ExecutorConfig(functions=modules, device="cpu", threads=threads, path=path, nice=nice)
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
