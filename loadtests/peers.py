"""What a call's cost is compared with: a bare ASGI application, and LitServe in an environment of its own.

Each serves a function that does what `echo.py` does, under `POST /`, until its `with` block ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

LITSERVE: Final = "litserve==0.2.19"
ENVIRONMENT: Final = Path(__file__).resolve().parents[1] / "build" / "litserve"
"""Made on request, and kept: some 70 MB."""

_LITSERVE_APP: Final = """\
import sys
import litserve


class Echo(litserve.LitAPI):
    def setup(self, device):
        pass

    def decode_request(self, request):
        return request

    def predict(self, sent):
        return {"text": sent["text"], "n": sent["top_k"], "scores": sent["scores"]}

    def encode_response(self, output):
        return output


if __name__ == "__main__":
    server = litserve.LitServer(Echo(api_path="/call"), accelerator="cpu", workers_per_device=1, timeout=30)
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), num_api_servers=1, log_level="warning",
        generate_client_file=False, access_log=False,
    )
"""
_START_S: Final = 60.0
_PIP_S: Final = 600.0
_END_S: Final = 10.0
_SITE_END_S: Final = 30.0


class Service(NamedTuple):
    """Something that answers calls.

    Args:
        name: to be printed.
        port: on 127.0.0.1.
        path: of its function.
        root: the process whose whole tree is measured.
        key: sent as a bearer token; empty: none is.
    """

    name: str
    port: int
    path: str
    root: psutil.Process
    key: str = ""


async def anchor(scope: Any, receive: Any, send: Any) -> None:
    """The least that an ASGI server can do for a call: read it, and answer nothing much."""
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})


@contextmanager
def bare(port: int, body: bytes) -> Generator[Service]:
    """`anchor`, served by the server that the gateway uses."""
    how = ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]
    command = [sys.executable, "-m", "uvicorn", "--port", str(port), *how, "peers:anchor"]
    with served("bare ASGI", command, port, "/", body) as service:
        yield service


@contextmanager
def litserve(port: int, body: bytes) -> Generator[Service]:
    """LitServe with one worker, as Headrace has one executor.

    Raises:
        OSError: it can't be had here, and why.
    """
    python = litserve_python()
    with tempfile.TemporaryDirectory(prefix="hr-", dir="/tmp") as folder:
        app = Path(folder, "app.py")
        app.write_text(_LITSERVE_APP)
        with served("LitServe", [str(python), str(app), str(port)], port, "/call", body) as service:
            yield service


def litserve_python() -> Path:
    """The Python of the environment that has LitServe."""
    python = ENVIRONMENT / "bin" / "python"
    ready = ENVIRONMENT / ".ready"
    if not ready.exists() or ready.read_text() != LITSERVE:
        print(f"making an environment with {LITSERVE} in {ENVIRONMENT} (once)", flush=True)
        shutil.rmtree(ENVIRONMENT, ignore_errors=True)
        try:
            for command in (
                [sys.executable, "-m", "venv", str(ENVIRONMENT)],
                [str(python), "-m", "pip", "install", "--quiet", LITSERVE],
            ):
                subprocess.run(command, check=True, timeout=_PIP_S, capture_output=True, text=True)
        except subprocess.SubprocessError as error:
            said = str(getattr(error, "stderr", "") or error).strip().splitlines()
            raise OSError(f"{LITSERVE} can't be installed here: {said[-1] if said else error}") from error
        ready.write_text(LITSERVE)
    return python


@contextmanager
def served(name: str, command: Sequence[str], port: int, path: str, body: bytes) -> Generator[Service]:
    """A service in a process of its own, once it answers; all that it started ends with the block."""
    process = psutil.Popen(
        command, cwd=Path(__file__).parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        _await_answer(name, process, f"http://127.0.0.1:{port}{path}", body)
        yield Service(name, port, path, psutil.Process(process.pid))
    finally:
        _end_group(process)


def _end_group(leader: psutil.Popen) -> None:
    """End all of a group, also where the leader is dead already."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        members = _members(leader.pid)
        for one in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(number)
        psutil.wait_procs(members, _END_S)
        leader.poll()


def _members(group: int) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(one.pid) == group and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found


def end(process: subprocess.Popen[Any], number: int) -> None:
    """Ask a process to end, by that signal; where it doesn't for long, kill it and what it has started."""
    process.send_signal(number)
    try:
        process.wait(_SITE_END_S)
    except subprocess.TimeoutExpired:
        print(f"process {process.pid} doesn't end, and is killed", flush=True)
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        process.kill()
        process.wait()


def _await_answer(name: str, process: psutil.Popen, url: str, body: bytes) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    until = time.monotonic() + _START_S
    while True:
        try:
            with opener.open(request, timeout=5) as answer:
                json.load(answer)
                return
        except (OSError, ValueError) as error:
            if process.poll() is not None or time.monotonic() > until:
                raise OSError(f"{name} doesn't answer: {error}") from error
            time.sleep(0.1)


# ---------------------------------------------------------------------- wrk, a client in C


class Load(NamedTuple):
    """What a client saw in one round: calls answered, errors among them, and the time of a call."""

    calls: int
    errors: int
    seconds: float
    p50_ms: float
    p99_ms: float


_SCRIPT: Final = """\
local body = io.open(BODY, "rb")
wrk.method, wrk.body = "POST", body:read("*a")
body:close()
wrk.headers["Content-Type"] = "application/json"
if KEY ~= "" then wrk.headers["Authorization"] = "Bearer " .. KEY end
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("RESULT %d %d %.6f %.3f %.3f\\n", summary.requests,
    e.connect + e.read + e.write + e.status + e.timeout, summary.duration / 1e6,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000))
end
"""


def has_wrk() -> bool:
    """Whether the client is installed here; it takes a tenth of the CPU time that one in Python does."""
    return shutil.which("wrk") is not None


def wrk(service: Service, body: bytes, connections: int, seconds: float) -> Load:
    """Keep that many connections busy for so long; whole seconds, at least one.

    Raises:
        OSError: wrk gave no result.
    """
    with tempfile.TemporaryDirectory(prefix="hr-", dir="/tmp") as folder:
        content, script = Path(folder, "body.json"), Path(folder, "call.lua")
        content.write_bytes(body)
        script.write_text(f"BODY, KEY = {json.dumps(str(content))}, {json.dumps(service.key)}\n{_SCRIPT}")
        command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "10s"]
        url = f"http://127.0.0.1:{service.port}{service.path}"
        said = subprocess.run([*command, "-s", str(script), url], capture_output=True, text=True, check=False)
    found = re.search(r"^RESULT (\S+) (\S+) (\S+) (\S+) (\S+)$", said.stdout, re.MULTILINE)
    if found is None:
        raise OSError(f"wrk gave no result: {said.stdout}{said.stderr}")
    calls, errors, took, p50_ms, p99_ms = found.groups()
    return Load(int(calls), int(errors), float(took), float(p50_ms), float(p99_ms))
