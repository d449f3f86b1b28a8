"""A whole site of real processes on a test's database: a gateway, runners, and a client for them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import psutil
from prometheus_client.parser import text_string_to_metric_families

from headrace.database import Database
from headrace.domain import FINAL
from headrace.keys import create_key

T = TypeVar("T")

SUPPORT = Path(__file__).parents[1]
PATIENCE_S = 30.0
START_S = 60.0  # a process imports much, and others may start beside it


class NotInTimeError(AssertionError):
    """Something was waited for in vain: it doesn't happen, or the machine has stalled."""


def eventually(look: Callable[[], T | None], what: str, *, within: float = PATIENCE_S) -> T:
    """What `look` returns as soon as it is true; looks again and again until then.

    Raises:
        NotInTimeError: it wasn't within so many seconds.
    """
    deadline = time.monotonic() + within
    while True:
        if found := look():
            return found
        if time.monotonic() > deadline:
            raise NotInTimeError(f"not within {within:g} s: {what}")
        time.sleep(0.01)


def answered(
    request: Callable[[], httpx2.Response], status: int, *, within: float = PATIENCE_S
) -> httpx2.Response:
    """The first answer of that status; asks again and again until then."""

    def look() -> httpx2.Response | None:
        response = request()
        return response if response.status_code == status else None

    return eventually(look, f"an answer of status {status}", within=within)


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**settings: str) -> dict[str, str]:
    """This process's environment, with these settings instead of its own and the test functions to import."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    path = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**inherited, "PYTHONPATH": path, **settings}


class Process:
    """One process of a site, with its output in a file."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self.name = name
        self.may_end = False
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self._begins_at = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env=dict(environment),
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Signal this process alone."""
        self.may_end = True
        self._process.send_signal(number)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop this process alone in its tracks meanwhile."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, its children too."""
        self.may_end = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> int:
        """Ask it to end; returns its exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        self.may_end = True
        return self._process.wait(PATIENCE_S)

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def output(self) -> str:
        """What it has written; not what an earlier process of the same name has."""
        return self.log.read_bytes()[self._begins_at :].decode(errors="replace")

    def lines(self, event: str = "") -> list[dict[str, Any]]:
        """The lines of its log whose event begins so; each complete line must be a JSON object."""
        found = [json.loads(line) for line in self.output().splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in found if line["event"].startswith(event)]

    def said(self, event: str) -> bool:
        return bool(self.lines(event))

    def warden(self) -> psutil.Process:
        """A runner's; the newest one."""
        return [one for one in psutil.Process(self.pid).children() if "warden" in "".join(one.cmdline())][-1]

    def descendants(self) -> list[psutil.Process]:
        """Its children and theirs: fork server and executors."""
        return psutil.Process(self.pid).children(recursive=True)


class Site:
    """A running site.

    Args:
        database_url: its database, migrated.
        folder: for logs and sockets; short, because of the sockets.
        functions: modules that its runners serve.
        settings: further `HEADRACE_*` variables for all processes.
    """

    def __init__(
        self, database_url: str, folder: Path, functions: str, settings: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.functions = functions
        self.database_url = database_url
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.key = asyncio.run(_make_key(database_url))
        self.processes: list[Process] = []
        self._settings = dict(settings or {})
        self.client = httpx2.Client(base_url=self.url, timeout=PATIENCE_S, trust_env=False)

    def environment(self, **more: str) -> dict[str, str]:
        return {
            **environment(),
            "HEADRACE_HOME": str(self.folder / "home"),
            "HEADRACE_DATABASE_URL": self.database_url,
            "HEADRACE_PORT": str(self.port),
            "HEADRACE_FUNCTIONS": self.functions,
            "HEADRACE_DEVICE": "cpu",
            **self._settings,
            **more,
        }

    def start(self, name: str, *command: str, **more: str) -> Process:
        process = Process(name, command, self.environment(**more), self.folder)
        self.processes.append(process)
        return process

    def write_module(self, name: str, source: str) -> None:
        """A module that runners started from now on find."""
        (self.folder / f"{name}.py").write_text(source)

    def __getitem__(self, name: str) -> Process:
        """The newest process of that name."""
        return next(process for process in reversed(self.processes) if process.name == name)

    def start_gateway(self) -> Process:
        process = self.start("gateway", "headrace", "gateway")
        self.wait_answering()
        return process

    def start_another_gateway(self, name: str) -> str:
        """One more gateway, which sees all runners; returns its address."""
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        process = self.start(name, "headrace", "gateway", HEADRACE_PORT=str(port))

        def runners(address: str) -> dict[str, int]:
            assert not process.has_ended(), process.output()
            with contextlib.suppress(httpx2.TransportError):
                states = self.client.get(f"{address}/readyz").json()["functions"]
                return {name: state["runners"] for name, state in states.items()}
            return {}

        eventually(lambda: runners(url) == runners(self.url), "it sees what the first one does")
        return url

    def wait_answering(self) -> None:
        """Wait until the gateway serves HTTP."""

        def answers() -> bool:
            assert not self["gateway"].has_ended(), self["gateway"].output()
            with contextlib.suppress(httpx2.TransportError):
                return self.client.get("/healthz").status_code == 200
            return False

        eventually(answers, "the gateway answers", within=START_S)

    def start_runner(self, name: str = "runner", **more: str) -> Process:
        address = f"unix:{self.folder}/{name}.sock"
        return self.start(name, "gpu_runner", HEADRACE_RUNNER_ADVERTISE=address, **more)

    def wait_ready(self, runners: int = 1) -> None:
        """Wait until every registered function has that many runners."""

        def ready() -> bool:
            for process in self.processes:
                assert process.may_end or not process.has_ended(), process.output()
            states = self.client.get("/readyz").json()["functions"].values()
            return bool(states) and all(state["runners"] == runners for state in states)

        eventually(ready, f"{runners} runners are linked", within=START_S)

    def call(self, name: str, input: Any, **headers: str) -> httpx2.Response:
        return self.post(f"/fn/{name}", json.dumps(input).encode(), **headers)

    def post(self, path: str, content: bytes, **headers: str) -> httpx2.Response:
        wanted = {"Content-Type": "application/json", **self.headers(**headers)}
        return self.client.post(path, content=content, headers=wanted)

    def get(self, path: str, **headers: str) -> httpx2.Response:
        return self.client.get(path, headers=self.headers(**headers))

    def at_once(self, calls: Sequence[tuple[str, Any]], **headers: str) -> list[httpx2.Response]:
        """The answers of calls that are made at the same time."""
        with ThreadPoolExecutor(len(calls)) as threads:
            futures = [threads.submit(self.call, *call, **headers) for call in calls]
            return [future.result() for future in futures]

    @contextlib.contextmanager
    def calling(self, *calls: tuple[str, Any], **headers: str) -> Iterator[list[Future[httpx2.Response]]]:
        """The same while something else is done; all have an answer at the end."""
        with ThreadPoolExecutor(max(1, len(calls))) as threads:
            yield [threads.submit(self.call, *call, **headers) for call in calls]

    def submit(self, name: str, input: Any, **headers: str) -> str:
        """Have a job made of a call; returns its id."""
        response = self.call(name, input, Prefer="respond-async", **headers)
        assert response.status_code == 202, response.text
        return response.json()["job_id"]

    def job(self, job_id: str) -> dict[str, Any]:
        """A job as its owner sees it."""
        response = self.get(f"/jobs/{job_id}")
        assert response.status_code == 200, response.text
        return response.json()

    def final(self, job_id: str, *, within: float = PATIENCE_S) -> dict[str, Any]:
        """The job as soon as its state is final."""

        def look() -> dict[str, Any] | None:
            job = self.job(job_id)
            return job if job["status"] in FINAL else None

        return eventually(look, f"job {job_id} is final", within=within)

    def access_lines(self, request_id: str) -> list[dict[str, Any]]:
        """The gateway's lines about one request; they are written up to 50 ms later."""
        lines = [line for line in self["gateway"].lines() if line.get("request_id") == request_id]
        return [line for line in lines if line["event"] in {"call", "request"}]

    def runners_of(self, name: str) -> int:
        """How many runners can execute the function, as the gateway sees it."""
        return self.get(f"/fn/{name}").json()["state"]["runners"]

    def metric(self, process: Process, name: str, **labels: str) -> float:
        """A sample of what a process serves at `/metrics`; 0 while there is none."""
        url = f"{self.url}/metrics"
        if process.name != "gateway":
            url = process.lines("metrics on ")[-1]["event"].removeprefix("metrics on ")
        for family in text_string_to_metric_families(self.client.get(url).text):
            for sample in family.samples:
                if (sample.name, sample.labels) == (name, labels):
                    return sample.value
        return 0.0

    def headers(self, **headers: str) -> dict[str, str]:
        """The key's header, a request id, and others, whose names are written with underscores."""
        return {
            "Authorization": f"Bearer {self.key}",
            "X-Request-Id": str(uuid.uuid4()),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }

    def close(self) -> None:
        self.client.close()
        for process in reversed(self.processes):
            process.kill()


@contextlib.contextmanager
def site(
    database_url: str,
    *,
    functions: str = "site_functions",
    runners: int = 1,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Site]:
    """A site that is ready; its processes are killed at the end."""
    with tempfile.TemporaryDirectory(prefix="hr-", dir="/tmp") as folder:
        running = Site(database_url, Path(folder), functions, settings)
        try:
            for number in range(runners):
                running.start_runner(f"runner-{number}")
            running.start_gateway()
            if runners:
                running.wait_ready(runners)
            yield running
        finally:
            running.close()


async def _make_key(database_url: str) -> str:
    async with await Database.open(database_url, application_name="test") as database:
        return await create_key(database, "tester", "test")
