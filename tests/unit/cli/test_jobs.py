from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.job_commands import (
    DONE,
    EXPIRED,
    JOB,
    OTHER,
    PATH,
    QUEUED,
    RUNNING,
    command,
    on_a_terminal,
    run,
    states,
)
from harness.scripted_site import Answer, ScriptedSite, document, event, scripted_site, stream

from headrace.site.address import free_port

UNKNOWN = document({"code": "unknown-job", "title": "No such job", "detail": "There is none."}, 404)


@pytest.fixture
def site() -> Iterator[ScriptedSite]:
    with scripted_site() as made:
        yield made


# ---------------------------------------------------------------------- call --async


def test_a_script_gets_the_id_alone(site: ScriptedSite) -> None:
    site.on("POST /fn/echo", document(QUEUED, 202))
    done = run(site, "call", "echo", '{"text": "a"}', "--async")

    assert (done.returncode, done.stdout, done.stderr) == (0, f"{JOB}\n", "")
    assert site.asked[0].headers["Prefer"] == "respond-async"
    assert json.loads(site.asked[0].body) == {"text": "a"}


def test_a_call_says_what_it_wishes(site: ScriptedSite) -> None:
    site.on("POST /fn/echo", document(QUEUED, 202))
    run(site, "call", "echo", "--async", "--priority", "low", "--deadline", "1.5m", "--idempotency-key", "k")

    asked = site.asked[0].headers
    assert asked["Headrace-Priority"] == "low"
    assert asked["Headrace-Deadline"] == "90.0"
    assert asked["Idempotency-Key"] == '"k"'


def test_a_person_is_told_how_to_go_on(site: ScriptedSite) -> None:
    site.on("POST /fn/echo", document(QUEUED, 202))
    shown, status = on_a_terminal(site, "call", "echo", "--async")

    assert status == 0
    assert f"`headrace jobs follow {JOB}` waits for the result" in shown


# ---------------------------------------------------------------------- --patience


def full(seconds: int, place: str) -> Answer:
    problem = {"code": "no-capacity", "title": "It could not start in time", "detail": "No.", "place": place}
    return document(problem, 503, Retry_After=str(seconds))


def test_a_refused_person_is_told_when_to_come_back_and_how(site: ScriptedSite) -> None:
    site.on("POST /fn/echo", full(7, OTHER))
    done = run(site, "call", "echo", "--patience", "5s")

    assert (done.returncode, done.stdout, len(site.asked)) == (1, "", 1)
    first, second = done.stderr.splitlines()
    assert first == "headrace: It could not start in time: No."
    assert "Try again after 7 s, " in second
    assert "--patience TIME" in second


@pytest.mark.parametrize("way", [(), ("--async",)])
def test_with_patience_a_command_comes_back_with_its_place(site: ScriptedSite, way: tuple[str, ...]) -> None:
    site.on("POST /fn/echo", full(1, OTHER), document(QUEUED, 202))
    site.on(f"GET {PATH}", document(DONE))
    done = run(site, "call", "echo", "--patience", "1m", *way)

    assert (done.returncode, done.stderr) == (0, "")
    assert [one.headers["Headrace-Place"] for one in site.requests("POST")] == [None, OTHER]


def test_a_person_sees_what_is_waited_for(site: ScriptedSite) -> None:
    site.on("POST /fn/echo", full(1, OTHER), document(QUEUED, 202))
    shown, status = on_a_terminal(site, "call", "echo", "--async", "--patience", "60")

    assert status == 0
    assert "It could not start in time: coming back in 1 s" in shown


def test_a_stream_has_no_place(site: ScriptedSite) -> None:
    done = run(site, "call", "echo", "--stream", "--patience", "60")

    assert (done.returncode, site.asked) == (2, [])
    assert "--patience is of a call without --stream" in done.stderr


# ---------------------------------------------------------------------- list


def test_a_list_is_a_line_a_job(site: ScriptedSite) -> None:
    site.on("GET /jobs", document({"items": [DONE, QUEUED], "next": None}))
    done = run(site, "jobs", "list")

    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["JOB", "FUNCTION", "STATUS", "ATTEMPT", "CREATED", "FINISHED"],
        [JOB, "echo", "succeeded", "1", "2026-01-02T03:04:05Z", "2026-01-02T03:04:07Z"],
        [JOB, "echo", "queued", "0", "2026-01-02T03:04:05Z", "-"],
    ]


def test_a_list_says_that_there_is_more(site: ScriptedSite) -> None:
    site.on("GET /jobs", document({"items": [DONE], "next": "c1"}))
    told = run(site, "jobs", "list", "--limit", "1")
    run(site, "jobs", "list", "--cursor", "c1", "--limit", "1")

    assert told.stderr == "more: --limit 2, or --cursor c1 for what follows\n"
    assert site.asked[-1].path == "/jobs?limit=1&cursor=c1"


def test_a_list_fits_a_terminal(site: ScriptedSite) -> None:
    site.on("GET /jobs", document({"items": [DONE, {**QUEUED, "function": "f" * 40}], "next": None}))
    shown, _ = on_a_terminal(site, "jobs", "list")

    lines = shown.splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
    assert JOB in lines[1]


def test_a_list_is_asked_for_page_by_page(site: ScriptedSite) -> None:
    site.on(
        "GET /jobs",
        document({"items": [DONE] * 100, "next": "c1"}),
        document({"items": [QUEUED] * 20, "next": "c2"}),
    )
    done = run(site, "jobs", "list", "--status", "queued", "--function", "echo", "--limit", "120", "--json")

    assert json.loads(done.stdout) == [DONE] * 100 + [QUEUED] * 20
    assert [one.path for one in site.asked] == [
        "/jobs?status=queued&function=echo&limit=100",
        "/jobs?status=queued&function=echo&limit=20&cursor=c1",
    ]


# ---------------------------------------------------------------------- show


@pytest.mark.parametrize(
    ("job", "lines"),
    [
        (
            QUEUED,
            [
                "status    queued",
                "created   2026-01-02T03:04:05Z",
                "start by  2026-01-02T03:05:05Z",
                "end by    2026-01-02T03:06:05Z",
            ],
        ),
        (
            RUNNING,
            [
                "status    running",
                "progress  40% reading",
                "attempt   1",
                "created   2026-01-02T03:04:05Z",
                "started   2026-01-02T03:04:05Z, 0.25 s after its creation",
                "end by    2026-01-02T03:06:05Z",
            ],
        ),
        (
            DONE,
            [
                "status    succeeded",
                "attempt   1",
                "created   2026-01-02T03:04:05Z",
                "started   2026-01-02T03:04:05Z, 0.25 s after its creation",
                "finished  2026-01-02T03:04:07Z, 2.5 s after its creation",
                'result    {"text": "ä"}',
            ],
        ),
        (
            EXPIRED,
            [
                "status    expired",
                "created   2026-01-02T03:04:05Z",
                "finished  2026-01-02T03:05:05Z, 60 s after its creation",
                "error     queue-deadline-exceeded: The job could not be started in time.",
            ],
        ),
    ],
)
def test_a_job_is_shown_as_it_stands(site: ScriptedSite, job: dict[str, Any], lines: list[str]) -> None:
    site.on(f"GET {PATH}", document(job))
    done = run(site, "jobs", "show", JOB)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"job       {JOB}", "function  echo", *lines]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, "; attempt 2 ran 2.25 s"),
        (
            {"status": "failed", "error": {"category": "function-failed", "message": "no"}},
            "; attempt 2 ran 2.25 s",
        ),
        ({"status": "failed", "error": {"category": "deadline-exceeded", "message": "late"}}, ""),
    ],
)
def test_a_later_attempt_is_told_by_how_long_it_ran(
    site: ScriptedSite, more: dict[str, Any], told: str
) -> None:
    site.on(f"GET {PATH}", document({**DONE, **more, "attempt": 2}))
    done = run(site, "jobs", "show", JOB)

    assert f"finished  2026-01-02T03:04:07Z, 2.5 s after its creation{told}\n" in done.stdout


@pytest.mark.parametrize("more", [{"result": "x" * 1000}, {"result_url": f"{PATH}/result"}])
def test_a_large_result_is_not_shown_with_its_job(site: ScriptedSite, more: dict[str, str]) -> None:
    job = {name: value for name, value in DONE.items() if name != "result"} | more
    site.on(f"GET {PATH}", document(job))

    assert f"result    `headrace jobs follow {JOB}` prints it\n" in run(site, "jobs", "show", JOB).stdout
    assert json.loads(run(site, "jobs", "show", JOB, "--json").stdout) == job


@pytest.mark.parametrize(
    ("until", "lines"),
    [
        ("9999-01-02T03:04:07.000Z", ['result    {"text": "ä"}', "kept      until 9999-01-02T03:04:07Z"]),
        ("2026-01-02T03:05:07.000Z", ["result    expired, 2026-01-02T03:05:07Z"]),
    ],
)
def test_a_result_is_told_with_how_long_it_is_kept(site: ScriptedSite, until: str, lines: list[str]) -> None:
    site.on(f"GET {PATH}", document({**DONE, "result_expires_at": until}))

    assert run(site, "jobs", "show", JOB).stdout.splitlines()[-len(lines) :] == lines


# ---------------------------------------------------------------------- cancel


def test_each_cancelled_job_is_told(site: ScriptedSite) -> None:
    site.on(f"POST {PATH}/cancel", document({**RUNNING, "status": "cancel_requested"}, 202))
    site.on(f"POST /jobs/{OTHER}/cancel", document({**QUEUED, "status": "cancelled"}))
    done = run(site, "jobs", "cancel", JOB, OTHER)

    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"{JOB} cancel_requested\n{OTHER} cancelled\n",
        "",
    )


def test_a_job_that_cannot_be_cancelled_keeps_no_other(site: ScriptedSite) -> None:
    finished = {"code": "already-finished", "title": "The job is already finished"}
    site.on(f"POST {PATH}/cancel", document(finished, 409))
    site.on(f"POST /jobs/{OTHER}/cancel", document({**QUEUED, "status": "cancelled"}))
    done = run(site, "jobs", "cancel", JOB, OTHER)

    assert (done.returncode, done.stdout) == (1, f"{OTHER} cancelled\n")
    assert done.stderr == f"headrace: {JOB}: The job is already finished\n"


# ---------------------------------------------------------------------- events


def test_events_are_a_table_of_what_was_recorded(site: ScriptedSite) -> None:
    over = threading.Event()
    site.on(f"GET {PATH}", document(RUNNING))
    item = event("item", 2, "of an earlier start")
    site.on(f"GET {PATH}/events", stream(item, *states(("queued", 0), ("running", 1)), over))
    done = run(site, "jobs", "events", JOB)
    over.set()

    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(maxsplit=5) for line in done.stdout.splitlines()] == [
        ["AT", "FROM", "TO", "ATTEMPT", "WHO", "WHY"],
        ["2026-01-02T03:04:01.000Z", "-", "queued", "0", "key:1", "reason 1"],
        ["2026-01-02T03:04:02.000Z", "queued", "running", "1", "key:2", "reason 2"],
    ]


def test_the_end_is_the_last_of_a_final_jobs_events(site: ScriptedSite) -> None:
    site.on(f"GET {PATH}", document(EXPIRED))
    last = {
        "status": "expired",
        "attempt": 0,
        "at": "2026-01-02T03:05:05.000Z",
        "reason": "its queue deadline passed",
        "by": "gateway:1",
        "error": EXPIRED["error"],
    }
    site.on(f"GET {PATH}/events", stream(*states(("queued", 0)), event("error", 2, last)))
    done = run(site, "jobs", "events", JOB)

    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].split(maxsplit=5) == [
        "2026-01-02T03:05:05.000Z",
        "queued",
        "expired",
        "0",
        "gateway:1",
        "its queue deadline passed",
    ]


@pytest.mark.parametrize(
    ("category", "why"), [("function-failed", "it failed: no coal"), ("worker-lost", "it failed")]
)
def test_an_error_is_told_where_it_says_more(site: ScriptedSite, category: str, why: str) -> None:
    job = {**DONE, "status": "failed", "error": {"category": category, "message": "no coal"}}
    last = {
        "status": "failed",
        "attempt": 1,
        "at": DONE["finished_at"],
        "reason": "it failed",
        "by": "runner:1",
    }
    site.on(f"GET {PATH}", document(job))
    site.on(f"GET {PATH}/events", stream(event("error", 2, last | {"error": job["error"]})))

    assert run(site, "jobs", "events", JOB).stdout.rstrip().endswith(f"runner:1  {why}")


# ---------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("name", ["show", "follow", "cancel", "events"])
def test_an_unknown_job_is_said(site: ScriptedSite, name: str) -> None:
    for request in (f"GET {PATH}", f"POST {PATH}/cancel"):
        site.on(request, UNKNOWN)
    done = run(site, "jobs", name, JOB)

    assert (done.returncode, done.stdout) == (1, "")
    assert "No such job: There is none." in done.stderr.splitlines()[0]


@pytest.mark.parametrize("name", ["show", "follow", "cancel", "events"])
def test_what_is_no_id_is_wrong_usage(site: ScriptedSite, name: str) -> None:
    done = run(site, "jobs", name, "echo")

    assert done.returncode == 2
    assert "'echo' is no job id: `headrace jobs list` shows them" in done.stderr.replace("\n", " ")
    assert site.asked == []


def test_a_key_without_the_scope_is_said(site: ScriptedSite) -> None:
    problem = {"code": "forbidden", "title": "The key does not allow this", "detail": "It needs `read`."}
    site.on("GET /jobs", document(problem, 403))
    done = run(site, "jobs", "list")

    assert done.returncode == 1
    heading, remedy = done.stderr.splitlines()
    assert heading == "headrace: The key does not allow this: It needs `read`."
    assert remedy.startswith("  Use a key ")


def test_no_key_and_no_gateway_are_said_as_by_a_call(site: ScriptedSite, tmp_path: Path) -> None:
    site.on("GET /jobs", document({"code": "missing-key", "title": "An API key is needed"}, 401))
    environment = {"PATH": "/usr/bin:/bin"}

    def jobs(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command("jobs", "list", *arguments),
            cwd=tmp_path,
            env=environment | more,
            capture_output=True,
            text=True,
            check=False,
        )

    keyless, homeless = jobs("--url", site.url), jobs()
    down = jobs(HEADRACE_KEY="hr_x", HEADRACE_PORT=str(free_port("127.0.0.1")))

    assert f"headrace: {site.url} asks for a key, but none is given\n" in keyless.stderr
    assert homeless.stderr.startswith("headrace: there is no Headrace home in ")
    assert down.stderr.endswith("Connection refused: is `headrace up` running?\n")
    assert (keyless.returncode, homeless.returncode, down.returncode) == (1, 1, 1)
