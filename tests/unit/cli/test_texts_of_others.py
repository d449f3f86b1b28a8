"""What functions say is shown, never obeyed; programs get all of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from harness.job_commands import DONE, FAILED, JOB, PATH, QUEUED, RUNNING, on_a_terminal, run, states
from harness.scripted_site import ScriptedSite, document, event, scripted_site, stream

from headrace.cli._table import fitted, short_id
from headrace.cli.output import on_one_line, one_line, plain, pretty

EVIL = "\x1b]0;mine\x07\x9b2J\r\nheadrace: \u202eall is well"
SHOWN = r"\x1b]0;mine\x07\x9b2J\r\nheadrace: \u202eall is well"


@pytest.fixture
def site() -> Iterator[ScriptedSite]:
    with scripted_site() as made:
        yield made


# ---------------------------------------------------------------------- shown, not obeyed


def test_what_a_terminal_obeys_is_escaped_and_the_rest_is_not() -> None:
    assert plain(EVIL) == SHOWN
    assert plain("Grüße, 漢字 👩‍🔬") == "Grüße, 漢字 👩‍🔬"


@pytest.mark.parametrize(("width", "length"), [(None, 200), (40, 40)])
def test_a_line_is_cut(width: int | None, length: int) -> None:
    assert one_line("a" * 1000, width) == "a" * (length - 3) + "..."
    assert one_line("a" * length, width) == "a" * length
    assert one_line("漢" * 1000, 20) == "漢" * 8 + "..."


def test_json_stays_the_same_json() -> None:
    value = {"text": EVIL + "\udc80\u2028ä"}

    for text in (on_one_line(value), pretty(value)):
        assert json.loads(text) == value
        assert plain(text.replace("\n", "")) == text.replace("\n", "")
    assert "ä" in on_one_line(value)


def test_progress_is_one_plain_line_in_a_pipe(site: ScriptedSite) -> None:
    site.on(f"GET {PATH}", document(RUNNING), document(DONE))
    site.on(f"GET {PATH}/result", document({"text": EVIL}))
    told = [{"fraction": 0.4, "message": text} for text in (EVIL, "x" * 500)]
    parts = [event("progress", number, one) for number, one in enumerate(told)]
    site.on(f"GET {PATH}/events", stream(*parts, event("result", 7, {})))
    done = run(site, "jobs", "follow", JOB)

    assert done.stderr.splitlines() == [f"40% {SHOWN}", f"40% {'x' * 193}..."]
    assert json.loads(done.stdout) == {"text": EVIL}
    assert plain(done.stdout[:-1]) == done.stdout[:-1]


def test_progress_is_one_plain_line_on_a_terminal(site: ScriptedSite) -> None:
    seen = threading.Event()
    site.on(f"GET {PATH}", document(RUNNING), document(FAILED))
    progress = event("progress", 4, {"fraction": 0.4, "message": f"[red]{EVIL}{'x' * 500}"})
    site.on(f"GET {PATH}/events", stream(progress, seen, event("error", 7, {})))
    threading.Timer(0.5, seen.set).start()  # the spinner turns ten times a second
    shown, _ = on_a_terminal(site, "jobs", "follow", JOB)

    assert f"40% [red]{SHOWN[:20]}" in shown
    assert "\x1b]0;" not in shown
    assert "\x9b" not in shown
    assert "x" * 75 not in shown


@pytest.mark.parametrize("name", ["show", "follow"])
def test_an_error_is_plain(site: ScriptedSite, name: str) -> None:
    error = {"category": "function-failed", "message": EVIL + "x" * 500, "errors": []}
    site.on(f"GET {PATH}", document({**FAILED, "error": error}))
    done = run(site, "jobs", name, JOB)

    said = done.stdout + done.stderr
    assert SHOWN in said
    assert plain(said.replace("\n", "")) == said.replace("\n", "")
    assert "x" * 400 not in said


def test_the_events_and_the_list_are_plain(site: ScriptedSite) -> None:
    site.on(f"GET {PATH}", document(FAILED))
    last = {"status": "failed", "attempt": 1, "at": DONE["finished_at"], "reason": "r", "by": "runner:1"}
    error = {"category": "function-failed", "message": EVIL}
    site.on(f"GET {PATH}/events", stream(event("error", 2, last | {"error": error})))
    site.on("GET /jobs", document({"items": [{**DONE, "function": EVIL}], "next": None}))

    assert run(site, "jobs", "events", JOB).stdout.endswith(f"r: {SHOWN}\n")
    assert f"  {SHOWN}  succeeded" in run(site, "jobs", "list").stdout


def test_the_events_fit_a_terminal_and_are_whole_in_a_pipe(site: ScriptedSite) -> None:
    site.on(f"GET {PATH}", document(FAILED))
    who = f"runner:{JOB[:-1]}f"
    last = {"status": "failed", "attempt": 1, "at": DONE["finished_at"], "reason": "it failed", "by": who}
    error = {"category": "function-failed", "message": "no coal in the tender, and none on the way"}
    ended = event("error", 3, last | {"error": error})
    site.on(f"GET {PATH}/events", stream(*states(("queued", 0), ("running", 1)), ended))
    shown, status = on_a_terminal(site, "jobs", "events", JOB)
    whole = run(site, "jobs", "events", JOB).stdout

    assert status == 0
    assert len(shown.splitlines()) == 4
    assert max(map(len, shown.splitlines())) <= 80
    assert "03:04:07.500Z" in shown
    assert f"{who}  it failed: {error['message']}\n" in whole


def test_a_refusal_is_plain(site: ScriptedSite) -> None:
    problem = {"code": "function-failed", "title": "The function failed", "detail": EVIL}
    site.on("POST /fn/echo", document(problem, 500))

    assert run(site, "call", "echo").stderr.splitlines()[0] == f"headrace: The function failed: {SHOWN}"


# ---------------------------------------------------------------------- for programs


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_events_in_json_are_a_line_each(site: ScriptedSite) -> None:
    over = threading.Event()
    site.on(f"GET {PATH}", document(RUNNING))
    site.on(f"GET {PATH}/events", stream(*states(("queued", 0), ("running", 1)), over))
    done = run(site, "jobs", "events", JOB, "--json")
    over.set()

    found = lines(done.stdout)
    assert [(one["event"], one["id"], one["status"]) for one in found] == [
        ("state", 1, "queued"),
        ("state", 2, "running"),
    ]
    assert found[1]["at"] == "2026-01-02T03:04:02.000Z"


@pytest.mark.parametrize("before", [RUNNING, DONE])
@pytest.mark.parametrize("more", [{"result": {"text": "ä"}}, {"result_url": f"{PATH}/result"}])
def test_following_in_json_ends_with_the_result(
    site: ScriptedSite, before: dict[str, Any], more: dict[str, Any]
) -> None:
    site.on(f"GET {PATH}", document(before), document(DONE))
    site.on(f"GET {PATH}/result", document({"text": "ä"}))
    progress = event("progress", 3, {"fraction": 0.4, "message": EVIL})
    last = event("result", 4, {"status": "succeeded", "job_id": JOB, **more})
    site.on(f"GET {PATH}/events", stream(*states(("queued", 0), ("running", 1)), progress, last))
    done = run(site, "jobs", "follow", JOB, "--json")

    assert (done.returncode, done.stderr) == (0, "")
    found = lines(done.stdout)
    assert [one["event"] for one in found] == ["state", "state", "progress", "result"]
    assert found[2]["message"] == EVIL
    assert found[3] == {
        "event": "result",
        "id": 4,
        "status": "succeeded",
        "job_id": JOB,
        "result": {"text": "ä"},
    }


def test_following_a_failure_in_json_ends_with_the_error_and_1(site: ScriptedSite) -> None:
    site.on(f"GET {PATH}", document(RUNNING), document(FAILED))
    last = {"status": "failed", "error": FAILED["error"]}
    site.on(f"GET {PATH}/events", stream(*states(("running", 1)), event("error", 2, last)))
    done = run(site, "jobs", "follow", JOB, "--json")

    assert done.returncode == 1
    assert lines(done.stdout)[-1] == {"event": "error", "id": 2, **last}
    assert "headrace: the job failed" in done.stderr


def test_cancelled_jobs_in_json_are_a_line_each(site: ScriptedSite) -> None:
    cancelled = {**QUEUED, "status": "cancelled"}
    site.on(f"POST {PATH}/cancel", document(cancelled))

    assert lines(run(site, "jobs", "cancel", JOB, JOB, "--json").stdout) == [cancelled, cancelled]


def test_a_gateway_that_is_away_is_said_once(site: ScriptedSite) -> None:
    site.on(f"GET {PATH}", document(RUNNING), document(DONE))
    site.on(f"GET {PATH}/result", document({}))
    away = document({"code": "database-unavailable", "title": "The database is away"}, 503)
    parts = states(("queued", 0), ("running", 1))
    site.on(f"GET {PATH}/events", stream(parts[0]), away, away, stream(parts[1], event("result", 7, {})))
    done = run(site, "jobs", "follow", JOB)

    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "queued",
        "  The database is away, waiting up to 60 s",
        "running",
    ]


# ---------------------------------------------------------------------- tables


HEAD = ("ID", "NAME", "SINCE", "WHY")
ID = "0199e0a0-0000-7000-8000-00000abcdef0"
ROW = (f"key:{ID}", "embed", "2026-01-02T03:04:05Z", "because of the weather in the north")


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (None, ROW),
        (106, ROW),
        (105, ("key:..0abcdef0", *ROW[1:])),
        (70, ("key:..0abcdef0", "embed", "because of the weather in the north")),
        (40, ("key:..0abcdef0", "embed", "because of the...")),
        (5, ("key:..0abcdef0", "embed", "because...")),
    ],
)
def test_a_table_says_less_where_there_is_less_room(width: int | None, expected: tuple[str, ...]) -> None:
    told = fitted(HEAD, [ROW], width, shorten={"ID": short_id}, drop=["SINCE"], cut="WHY").splitlines()

    assert told[1].split("  ") == list(expected)
    assert len(told[0].split()) == len(expected)
