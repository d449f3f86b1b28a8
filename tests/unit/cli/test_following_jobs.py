from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from harness.job_commands import (
    DONE,
    EXPIRED,
    FAILED,
    JOB,
    PATH,
    QUEUED,
    RUNNING,
    command,
    on_a_terminal,
    run,
    states,
)
from harness.scripted_site import ScriptedSite, document, event, scripted_site, stream


@pytest.fixture
def site() -> Iterator[ScriptedSite]:
    with scripted_site() as made:
        yield made


def test_following_tells_the_way_and_prints_the_result(site: ScriptedSite) -> None:
    told = states(("queued", 0), ("running", 1), ("queued", 1), ("running", 2))
    progress = event("progress", 4, {"fraction": 0.4, "message": "reading"})
    site.on(f"GET {PATH}", document(QUEUED), document(DONE))
    site.on(f"GET {PATH}/events", stream(*told, progress, event("result", 7, {})))
    site.on(f"GET {PATH}/result", document({"text": "ä"}))
    done = run(site, "jobs", "follow", JOB)

    assert (done.returncode, done.stdout) == (0, '{"text": "ä"}\n')
    assert done.stderr.splitlines() == [
        "queued",
        "running",
        "queued again: reason 3",
        "running, attempt 2",
        "40% reading",
    ]


def test_items_are_for_programs_whatever_they_are(site: ScriptedSite) -> None:
    told = [event("item", number, data) for number, data in enumerate(["a", {"id": 1}, [1], None], 3)]
    site.on(f"GET {PATH}", document(RUNNING), document(DONE))
    site.on(f"GET {PATH}/events", stream(*told, event("result", 7, {"result": "ä"})))
    site.on(f"GET {PATH}/result", document("ä"))
    done = run(site, "jobs", "follow", JOB, "--json")
    items = [json.loads(line) for line in done.stdout.splitlines()[:-1]]

    assert [(item["event"], item["id"]) for item in items] == [("item", number) for number in range(3, 7)]
    assert [item["item"] for item in items] == ["a", {"id": 1}, [1], None]
    site.on(f"GET {PATH}", document(RUNNING), document(DONE))
    assert run(site, "jobs", "follow", JOB).stderr == ""


def test_a_job_that_is_done_needs_no_following(site: ScriptedSite) -> None:
    site.on(f"GET {PATH}", document(DONE))
    site.on(f"GET {PATH}/result", document({"text": "ä"}))
    done = run(site, "jobs", "follow", JOB)

    assert (done.returncode, done.stdout, done.stderr) == (0, '{"text": "ä"}\n', "")


@pytest.mark.parametrize(
    ("job", "lines"),
    [
        (FAILED, ["the job failed: the moon (invalid-input)", "/phase: the moon", "Correct the input; "]),
        (EXPIRED, ["the job expired before it could start", "Call again when "]),
        ({**QUEUED, "status": "cancelled"}, ["the job was cancelled"]),
    ],
)
def test_a_job_without_a_result_is_an_error(
    site: ScriptedSite, job: dict[str, Any], lines: list[str]
) -> None:
    site.on(f"GET {PATH}", document(job))
    done = run(site, "jobs", "follow", JOB)

    said = [line.removeprefix("headrace: ").strip() for line in done.stderr.splitlines()]
    assert (done.returncode, done.stdout) == (1, "")
    assert len(said) == len(lines) + 1
    assert all(one.startswith(wanted) for one, wanted in zip(said, [*lines, f"job: {JOB}"], strict=True)), (
        said
    )


def test_an_expired_result_says_so(site: ScriptedSite) -> None:
    site.on(f"GET {PATH}", document(DONE))
    gone = {"code": "result-expired", "title": "The result has expired"}
    site.on(f"GET {PATH}/result", document(gone, 410))
    done = run(site, "jobs", "follow", JOB)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[0] == "headrace: The result has expired"


def test_ctrl_c_leaves_the_job_running(site: ScriptedSite) -> None:
    site.on(f"GET {PATH}", document(RUNNING))
    over = threading.Event()
    site.on(f"GET {PATH}/events", stream(*states(("queued", 0), ("running", 1)), over))
    environment = {"PATH": "/usr/bin:/bin", "HEADRACE_URL": site.url, "HEADRACE_KEY": "hr_x"}
    with subprocess.Popen(
        command("jobs", "follow", JOB), env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        while process.stderr.readline() != "running\n":
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    over.set()

    assert process.returncode == 130
    assert said == f"headrace: the job goes on; `headrace jobs follow {JOB}` waits again\n"
    assert site.requests("POST") == []


def test_a_terminal_shows_one_step_at_a_time(site: ScriptedSite) -> None:
    site.on(f"GET {PATH}", document(RUNNING), document(DONE))
    site.on(f"GET {PATH}/result", document({"text": "ä", "values": [1, 2]}))
    progress = event("progress", 4, {"fraction": 0.4, "message": "reading"})
    site.on(f"GET {PATH}/events", stream(*states(("running", 1)), progress, event("result", 7, {})))
    shown, status = on_a_terminal(site, "jobs", "follow", JOB)

    assert status == 0
    assert "\x1b[?25l" in shown  # the spinner hides the cursor
    assert '{\n  "text": "ä",\n  "values": [1, 2]\n}' in shown.replace("\r", "")
