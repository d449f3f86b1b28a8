"""Retries and dead letters at the command line, and how operators' commands are misused."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner
from harness.job_commands import EXPIRED, JOB, OTHER, PATH, QUEUED, on_a_terminal, run
from harness.scripted_site import ScriptedSite, document, scripted_site

from headrace.cli import commands, ops
from headrace.cli._duration import seconds

NEW = {**QUEUED, "job_id": OTHER, "retry_of": JOB}


@pytest.fixture
def site() -> Iterator[ScriptedSite]:
    with scripted_site() as made:
        yield made


def test_a_retry_prints_the_id_of_the_new_job(site: ScriptedSite) -> None:
    site.on(f"POST {PATH}/retry", document(NEW, 202))
    done = run(site, "jobs", "retry", JOB)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{OTHER}\n", "")
    assert json.loads(run(site, "jobs", "retry", JOB, "--json").stdout) == NEW


def test_a_job_that_cannot_be_retried_keeps_no_other(site: ScriptedSite) -> None:
    refused = {"code": "not-retryable", "title": "The job cannot be retried", "detail": "The job still runs."}
    site.on(f"POST {PATH}/retry", document(refused, 409))
    site.on(f"POST /jobs/{OTHER}/retry", document(NEW, 202))
    done = run(site, "jobs", "retry", JOB, OTHER)
    assert (done.returncode, done.stdout) == (1, f"{OTHER}\n")
    assert done.stderr == f"headrace: {JOB}: The job cannot be retried: The job still runs.\n"


def test_a_job_tells_what_it_does_again_and_what_does_it_again(site: ScriptedSite) -> None:
    site.on(f"GET {PATH}", document({**EXPIRED, "retry_of": "before", "retried_as": "after"}))
    shown = run(site, "jobs", "show", JOB).stdout.splitlines()
    assert shown[-2:] == ["retry of  before", "retried   as after"]


def test_dead_letters_are_listed_with_why(site: ScriptedSite) -> None:
    error = {"category": "function-failed", "message": "no\ncoal " + "x" * 100}
    letter = {**EXPIRED, "status": "failed", "error": error}
    site.on("GET /jobs", document({"items": [letter], "next": "c1"}))
    done = run(site, "jobs", "dead", "--category", "function-failed", "--function", "echo", "--limit", "1")
    assert site.asked[-1].path == "/jobs?function=echo&category=function-failed&dead=true&limit=1"
    assert [line.split(maxsplit=5) for line in done.stdout.splitlines()] == [
        ["JOB", "FUNCTION", "STATUS", "CATEGORY", "FINISHED", "MESSAGE"],
        [JOB, "echo", "failed", "function-failed", "2026-01-02T03:05:05Z", r"no\ncoal " + "x" * 100],
    ]
    assert done.stderr == "more: --limit 2, or --cursor c1 for what follows\n"
    shown, _ = on_a_terminal(site, "jobs", "dead", "--limit", "1")
    assert max(len(line) for line in shown.splitlines()[:2]) <= 80
    assert json.loads(run(site, "jobs", "dead", "--json").stdout) == [letter] * 20


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90), ("90s", 90), ("1.5h", 5400), ("2 d", 172_800), ("30m", 1800)]
)
def test_durations_are_read(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1y", "1h30m", "nan", "1e9", "9" * 400])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration: write it like 90s, 30m"):
        seconds(text)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["ops", "cancel"], "that would be all jobs: give a filter, or --all"),
        (["ops", "retry", "--yes"], "that would be all jobs"),
        (["ops", "cancel", "--older", "soon"], "'soon' is no duration"),
        (["ops", "cancel", "--status", "failed"], "'failed' is not one of 'queued', 'running'"),
        (["ops", "retry", "--status", "running"], "'running' is not one of"),
        (["ops", "cancel", "--batch", "1"], "'1' is not a valid UUID"),
        (["ops", "move", "--function", "a"], "Missing option '--to'"),
        (["ops", "cancel", "--all", "--limit", "0"], "0 is not in the range"),
        (["functions", "limit", "fish"], "nothing to set: give --waiting, --cost or --age"),
        (["functions", "limit", "fish", "--waiting", "1.5"], "'1.5' is neither a whole number nor 'none'"),
        (["functions", "limit", "fish", "--cost", "much"], "'much' is neither a number nor 'none'"),
        (
            ["functions", "limit", "fish", "--age", "soon"],
            "'soon' is neither a duration such as 90s, 10m nor",
        ),
        (["owners", "set", "ada", "--highest-priority", "urgent"], "'urgent' is not one of"),
        (["owners", "set", "ada"], "nothing to set"),
        (["audit", "--limit", "0"], "0 is not in the range"),
        (["ops", "dead", "--category", "bogus"], "there is no category 'bogus': the site's page /problems"),
        (["ops", "retry", "--category", "attempt-exhausted"], "did you mean attempts-exhausted?"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_asked(arguments: list[str], why: str) -> None:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(commands, arguments)
    assert done.exit_code == 2
    assert why in " ".join(done.output.replace("│", " ").split())


@pytest.mark.parametrize(("answer", "agrees"), [("y\n", True), ("n\n", False), ("", False)])
def test_without_an_answer_nothing_is_agreed_to(answer: str, agrees: bool) -> None:
    @click.command()
    def ask() -> None:
        click.echo(ops._agrees("Cancel 3 jobs?"))

    done = CliRunner().invoke(ask, input=answer)
    assert (done.exit_code, done.stdout) == (0, f"{agrees}\n")


def test_ctrl_c_at_a_question_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_prompt: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("click.termui.visible_prompt_func", interrupted)
    with pytest.raises(click.Abort):
        ops._agrees("Cancel 3 jobs?")
