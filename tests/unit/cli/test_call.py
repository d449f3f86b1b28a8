from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from headrace.client import CallRefused, Client, Unreachable
from headrace.site.address import free_port

PROBLEM = {
    "type": "/problems/invalid-input",
    "code": "invalid-input",
    "title": "The input is not valid",
    "status": 422,
    "detail": "at /texts/0: is too short (and 1 more)",
    "errors": [
        {"path": "/texts/0", "message": "is too short"},
        {"path": "", "message": "no such field"},
    ],
}
ONE_FAULT = PROBLEM | {
    "detail": "at /texts/0: is too short",
    "errors": [{"path": "/texts/0", "message": "is too short"}],
}
FAILED = {"code": "function-failed", "title": "The function failed", "detail": "The function failed."}
NO_KEY = {"code": "missing-key", "title": "An API key is needed", "detail": "The request carries no API key."}


class Site(BaseHTTPRequestHandler):
    """Answers what the test put into `answers` by function name, and keeps what it was asked."""

    answers: ClassVar[dict[str, tuple[int, dict[str, str], bytes]]]
    asked: ClassVar[list[tuple[str, str | None, bytes]]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append((self.path, self.headers["Authorization"], body))
        status, headers, answer = self.answers[self.path.removeprefix("/fn/")]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(answer)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[tuple[str, type[Site]]]:
    class Answers(Site):
        answers: ClassVar[dict[str, tuple[int, dict[str, str], bytes]]] = {
            "echo": (200, {}, b'{"value": [1.5, 2, -3e-05], "text": "\xc3\xa4"}'),
            "picky": (422, {}, json.dumps(PROBLEM).encode()),
            "one-fault": (422, {}, json.dumps(ONE_FAULT).encode()),
            "broken": (500, {}, json.dumps(FAILED).encode()),
            "locked": (401, {}, b'{"code": "invalid-key", "title": "The API key is not valid"}'),
            "keyless": (401, {}, json.dumps(NO_KEY).encode()),
            "page": (200, {}, b"<html>Hello</html>"),
            "busy": (503, {"Retry-After": "7"}, b'{"code": "busy", "title": "No room for the call now"}'),
            "proxy": (502, {}, b"<html>Bad gateway</html>"),
        }
        asked: ClassVar[list[tuple[str, str | None, bytes]]] = []

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", Answers
        server.shutdown()
        thread.join()


def call(*arguments: str, cwd: Path, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", "call", *arguments],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", **environment},
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_client_returns_the_output_and_sends_its_key(site: tuple[str, type[Site]]) -> None:
    url, asked = site
    with Client(url + "/", "hr_x") as client:
        assert client.call("echo", {"a": "ü"}) == {"value": [1.5, 2, -3e-05], "text": "ä"}
        client.call("echo", b"[1,\n2]")

    assert [(path, key) for path, key, _ in asked.asked] == [("/fn/echo", "Bearer hr_x")] * 2
    assert json.loads(asked.asked[0][2]) == {"a": "ü"}
    assert asked.asked[1][2] == b"[1,\n2]"


def test_a_refusal_carries_the_problem(site: tuple[str, type[Site]]) -> None:
    with Client(site[0]) as client:
        with pytest.raises(CallRefused) as caught:
            client.call("picky", {})
        assert (caught.value.status, caught.value.code, caught.value.problem) == (
            422,
            "invalid-input",
            PROBLEM,
        )
        assert str(caught.value) == "The input is not valid: at /texts/0: is too short (and 1 more)"

        with pytest.raises(CallRefused) as caught:
            client.call("busy", {})
        assert caught.value.retry_after == 7

        with pytest.raises(CallRefused) as caught:
            client.call("proxy", {})
        assert (str(caught.value), caught.value.problem) == ("HTTP 502", {})


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:{port}", "127.0.0.1:{port}", "http://127.0.0.1:99999", "http://"]
)
def test_no_answer_is_one_error(url: str) -> None:
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1|http:"):
        Client(url.format(port=free_port("127.0.0.1"))).call("echo", {})


@pytest.mark.parametrize("source", ["argument", "standard input", "file", "none"])
def test_input_comes_from_where_it_is_said(site: tuple[str, type[Site]], tmp_path: Path, source: str) -> None:
    (tmp_path / "in.json").write_text('{"from": "file"}')
    given = {
        "argument": ['{"from": "argument"}'],
        "standard input": ["-"],
        "file": ["@in.json"],
        "none": [],
    }[source]
    done = call(
        "echo", *given, "--url", site[0], "--key", "hr_x", cwd=tmp_path, text='{"from": "standard input"}'
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"value": [1.5, 2, -3e-05], "text": "ä"}
    assert done.stdout.count("\n") == 1
    assert json.loads(site[1].asked[0][2]) == ({} if source == "none" else {"from": source})


def test_address_and_key_come_from_the_environment(site: tuple[str, type[Site]], tmp_path: Path) -> None:
    done = call("echo", cwd=tmp_path, HEADRACE_URL=site[0], HEADRACE_KEY="hr_env")

    assert done.returncode == 0, done.stderr
    assert site[1].asked[0][1] == "Bearer hr_env"


def test_the_local_home_is_the_default(site: tuple[str, type[Site]], tmp_path: Path) -> None:
    (tmp_path / ".headrace").mkdir()
    (tmp_path / ".headrace" / "key").write_text("hr_home\n")
    port = site[0].rpartition(":")[2]
    done = call("echo", cwd=tmp_path, HEADRACE_PORT=port, HEADRACE_HOST="0.0.0.0")

    assert done.returncode == 0, done.stderr
    assert site[1].asked[0][1] == "Bearer hr_home"


def test_the_homes_key_is_not_sent_to_another_address(site: tuple[str, type[Site]], tmp_path: Path) -> None:
    (tmp_path / ".headrace").mkdir()
    (tmp_path / ".headrace" / "key").write_text("hr_home\n")
    done = call("echo", "--url", site[0], cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert site[1].asked[0][1] is None


def test_a_problem_is_shown_with_what_to_do(site: tuple[str, type[Site]], tmp_path: Path) -> None:
    done = call("picky", "--url", site[0], cwd=tmp_path)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "headrace: The input is not valid",
        "  /texts/0: is too short",
        "  no such field",
        "  Correct the input; the function's schema is on the site's page /docs.",
    ]


@pytest.mark.parametrize(
    ("function", "lines"),
    [
        ("one-fault", ["headrace: The input is not valid: at /texts/0: is too short", "  Correct the input"]),
        ("broken", ["headrace: The function failed.", "  Read the detail"]),
        ("busy", ["headrace: No room for the call now", "  Try again after 7 s, or make it a job, "]),
        ("locked", ["headrace: the key given by --key is not valid for {url}", "  Check that"]),
        ("proxy", ["headrace: the server at {url} is not a Headrace gateway (HTTP 502)"]),
        ("page", ["headrace: the server at {url} is not a Headrace gateway (no JSON)"]),
    ],
)
def test_nothing_is_said_twice(
    site: tuple[str, type[Site]], tmp_path: Path, function: str, lines: list[str]
) -> None:
    done = call(function, "--url", site[0], "--key", "hr_x", cwd=tmp_path)

    said = done.stderr.splitlines()
    assert (done.returncode, len(said)) == (1, len(lines)), said
    assert all(a.startswith(b.format(url=site[0])) for a, b in zip(said, lines, strict=True)), said


def test_the_file_of_a_wrong_key_is_named(site: tuple[str, type[Site]], tmp_path: Path) -> None:
    home = tmp_path / ".headrace"
    home.mkdir()
    port = site[0].rpartition(":")[2]
    missing = call("keyless", cwd=tmp_path, HEADRACE_PORT=port)
    (home / "key").write_text("hr_old\n")
    wrong = call("locked", cwd=tmp_path, HEADRACE_PORT=port)

    assert f"headrace: {site[0]} asks for a key, but there is none in {home / 'key'}\n" in missing.stderr
    assert f"headrace: the key in {home / 'key'} is not valid for {site[0]}\n" in wrong.stderr


def test_a_wrong_key_of_the_environment_is_named(site: tuple[str, type[Site]], tmp_path: Path) -> None:
    done = call("locked", cwd=tmp_path, HEADRACE_URL=site[0], HEADRACE_KEY="hr_x")

    assert done.stderr.startswith(f"headrace: the key in HEADRACE_KEY is not valid for {site[0]}\n")


@pytest.mark.parametrize("environment", [{}, {"HEADRACE_URL": "127.0.0.1:8000"}])
def test_an_address_without_a_scheme_is_wrong_usage(tmp_path: Path, environment: dict[str, str]) -> None:
    given = [] if environment else ["--url", "127.0.0.1:8000"]
    done = call("echo", *given, cwd=tmp_path, COLUMNS="200", **environment)

    assert done.returncode == 2
    assert "'127.0.0.1:8000' is no address: write it like http://127.0.0.1:8000" in done.stderr


def test_help_says_what_is_sent_without_being_given(tmp_path: Path) -> None:
    said = " ".join(call("--help", cwd=tmp_path, COLUMNS="200").stdout.split())

    assert "[default: {}]" in said
    assert "by default this home's, which is never sent to a given --url" in said


def test_no_advice_speaks_http() -> None:
    from headrace.cli._advice import advice, advice_on_job  # noqa: PLC0415 - slow to load
    from headrace.gateway.problem_kinds import KINDS  # noqa: PLC0415

    for code in KINDS:
        for said in (advice(code), advice_on_job(code)):
            assert "`GET" not in said, code
            assert "Prefer:" not in said, code
        assert "request id" not in advice_on_job(code)
        assert "`Retry-After`" not in advice(code, 3)
    assert "job's id" in advice_on_job("function-failed")
    assert advice("busy", 3).startswith("Try again after 3 s, or make it a job")


def test_an_unreachable_site_is_one_line(tmp_path: Path) -> None:
    port = str(free_port("127.0.0.1"))
    done = call("echo", cwd=tmp_path, HEADRACE_PORT=port, HEADRACE_KEY="hr_x")

    assert done.returncode == 1
    assert done.stderr == (
        f"headrace: http://127.0.0.1:{port} does not answer: Connection refused: is `headrace up` running?\n"
    )


def test_a_missing_file_is_wrong_usage(tmp_path: Path) -> None:
    done = call("echo", "@nowhere.json", "--url", "http://127.0.0.1", cwd=tmp_path)

    assert done.returncode == 2
    assert "nowhere.json can't be read" in done.stderr
