"""`headrace call --stream`."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator

import pytest
from harness.job_commands import command, run
from harness.scripted_site import Answer, ScriptedSite, document, event, scripted_site, stream

ITEMS = [event("item", 1, {"text": "ä"}), event("item", 2, "a\x1b[2J")]
FAILED = {"code": "function-failed", "title": "The function failed", "status": 500, "detail": "It broke."}


@pytest.fixture
def site() -> Iterator[ScriptedSite]:
    with scripted_site() as made:
        yield made


def started(site: ScriptedSite, *arguments: str) -> subprocess.Popen[str]:
    environment = {"PATH": "/usr/bin:/bin", "HEADRACE_URL": site.url, "HEADRACE_KEY": "hr_x"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command(*arguments), env=environment, stdout=pipe, stderr=pipe, text=True)


def test_each_item_is_a_line_that_is_printed_at_once(site: ScriptedSite) -> None:
    is_read = threading.Event()
    site.on("POST /fn/tell", stream(ITEMS[0], is_read, ITEMS[1], event("result", 3, {"text": "all"})))

    with started(site, "call", "tell", '{"a": 1}', "--stream", "--deadline", "9s") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == '{"text": "ä"}\n'
        is_read.set()
        rest, errors = running.communicate(timeout=20)

    assert (running.returncode, rest, errors) == (0, '"a\\u001b[2J"\n', "")
    (asked,) = site.asked
    assert (asked.body, asked.headers["Headrace-Deadline"]) == (b'{"a": 1}', "9.0")


def test_of_a_function_that_doesnt_stream_the_output_is_printed(site: ScriptedSite) -> None:
    site.on("POST /fn/tell", stream(event("result", 1, {"text": "all"})))
    done = run(site, "call", "tell", "--stream")

    assert (done.returncode, done.stdout, done.stderr) == (0, '{"text": "all"}\n', "")


def test_a_failure_midway_is_told_behind_the_items(site: ScriptedSite) -> None:
    site.on("POST /fn/tell", stream(*ITEMS, event("error", 3, FAILED)))
    done = run(site, "call", "tell", "--stream")

    assert (done.returncode, len(done.stdout.splitlines())) == (1, 2)
    assert "It broke." in done.stderr


def test_ctrl_c_leaves_the_stream(site: ScriptedSite) -> None:
    goes_on = threading.Event()
    site.on("POST /fn/tell", stream(ITEMS[0], goes_on))

    with started(site, "call", "tell", "--stream") as running:
        assert running.stdout is not None
        running.stdout.readline()
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=20)
    goes_on.set()

    assert running.returncode == 130
    assert "Traceback" not in errors


JOB = "0199e0a0-0000-7000-8000-000000000001"
RUNNING = event("state", 1, {"status": "running", "attempt": 1})
AGAIN = event("state", 3, {"status": "running", "attempt": 2})
DONE = event("result", 9, {"job_id": JOB, "status": "succeeded", "result": "all"})


def told(*parts: bytes | threading.Event) -> Answer:
    answer = stream(*parts)
    answer.headers["Headrace-Job-Id"] = JOB
    return answer


def test_with_a_key_it_goes_on_over_a_lost_connection(site: ScriptedSite) -> None:
    busy = document({"code": "database-unavailable", "title": "No"}, 503, Retry_After="0")
    site.on("POST /fn/tell", told(RUNNING, event("item", 2, 1)), busy, told(event("item", 3, 2), DONE))
    done = run(site, "call", "tell", "--stream", "--idempotency-key", "k", "--priority", "low")

    assert (done.returncode, done.stdout) == (0, "1\n2\n")
    assert "waiting up to 60 s" in done.stderr
    assert [one.headers["Last-Event-ID"] for one in site.asked] == [None, "2", "2"]
    assert {one.headers["Idempotency-Key"] for one in site.asked} == {'"k"'}
    assert site.asked[0].headers["Headrace-Priority"] == "low"


def test_a_program_is_not_given_the_items_twice(site: ScriptedSite) -> None:
    site.on("POST /fn/tell", told(RUNNING, event("item", 2, 1), AGAIN, event("item", 4, 1), DONE))
    done = run(site, "call", "tell", "--stream", "--idempotency-key", "k")

    assert (done.returncode, done.stdout) == (1, "1\n")
    assert "the 1 items so far are void" in done.stderr
    assert JOB in done.stderr


def test_ctrl_c_leaves_the_stream_of_a_job_that_goes_on(site: ScriptedSite) -> None:
    goes_on = threading.Event()
    site.on("POST /fn/tell", told(RUNNING, event("item", 2, 1), goes_on))

    with started(site, "call", "tell", "--stream", "--idempotency-key", "k") as running:
        assert running.stdout is not None
        running.stdout.readline()
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=20)
    goes_on.set()

    assert running.returncode == 130
    assert f"headrace jobs follow {JOB}" in errors


@pytest.mark.parametrize("option", [["--async"], ["--priority", "low"]], ids=lambda one: one[0])
def test_a_stream_is_of_no_job(site: ScriptedSite, option: list[str]) -> None:
    done = run(site, "call", "tell", "--stream", *option)

    assert done.returncode == 2
    assert "isn't a job" in done.stderr
    assert site.asked == []
