"""Where a running execution is and why it isn't ending, as operators are told."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from harness.postgres import Clones, query
from harness.site import Site, eventually, site

from headrace import runner_requests
from headrace.cli import commands
from headrace.errors import HeadraceError

IN_MAIN = ("sleeps", "computes", "counts_in_c", "locked_in_c", "catches", "blocks_signals")
ELSEWHERE = ("sleeps_in_pool", "sleeps_async")
FILE = Path(__file__).parents[1] / "support" / "standing_functions.py"


@pytest.fixture(scope="module")
def standing(clones: Clones) -> Iterator[Site]:
    settings = {"HEADRACE_EXECUTORS": str(len(IN_MAIN) // 2)}
    with (
        clones.migrated() as url,
        site(url, functions="standing_functions", runners=2, settings=settings) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def jobs(standing: Site) -> dict[str, str]:
    """The ids of jobs that run, by their functions; all executors are full.

    Those that need the interpreter only for a moment begin first: others hold it.
    """
    ids: dict[str, str] = {}
    for name in (*ELSEWHERE, *IN_MAIN):
        job_id = ids[name] = standing.submit(name, {})
        eventually(lambda job_id=job_id: standing.job(job_id)["status"] == "running", f"{name} runs")
    return ids


def program(served: Site, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as its user runs it."""
    command = [sys.executable, "-m", "headrace", "debug", "stack", *arguments]
    return subprocess.run(
        command, env=served.environment(), cwd=served.folder, capture_output=True, text=True, check=False
    )


def stack(served: Site, *arguments: str) -> Result:
    """The same within this process, which spares its start."""
    return CliRunner().invoke(commands, ["debug", "stack", *arguments], env=served.environment())


def shown(served: Site, *arguments: str) -> str:
    done = stack(served, *arguments)
    assert done.exit_code == 0, done
    return done.stdout


def refusal(served: Site, *arguments: str) -> str:
    """What its user is told instead."""
    error = stack(served, *arguments).exception
    assert isinstance(error, HeadraceError), error
    return str(error)


def seen(served: Site, job_id: str) -> dict[str, Any]:
    return json.loads(shown(served, job_id, "--json"))


def line_of(text: str) -> int:
    """The number of the only line of the functions' file that begins so."""
    (number,) = [at for at, line in enumerate(FILE.read_text().splitlines(), 1) if line.strip() == text]
    return number


def test_a_direct_call_is_found_by_its_id(standing: Site, tmp_path: Path) -> None:
    """The first test here: later, C code holds the interpreter of most executors."""
    path = tmp_path / "id"
    with standing.calling(("notes_its_id", {"path": str(path)})) as (answer,):
        job_id = eventually(lambda: path.exists() and path.read_text(), "it has noted its id")
        found = seen(standing, job_id)
        assert (found["path"], found["function"], found["phase"]) == ("direct", "notes_its_id", "running")
        Path(f"{path}.end").touch()
        assert answer.result().status_code == 200
    done = program(standing, job_id)
    assert done.returncode == 1
    assert done.stderr.startswith(f"headrace: no job and no running call is named {job_id}")


@pytest.mark.parametrize(
    ("name", "body", "at", "reason"),
    [
        ("sleeps", "main", "time.sleep(600)", "It sleeps or waits for input, and uses no CPU. Nothing has"),
        ("sleeps_in_pool", "pool", "time.sleep(600)", "Nothing has asked it to end: its soft limit"),
        ("computes", "main", "", "It computes, and gets "),
        ("counts_in_c", "main", "return sum(itertools.repeat(1))", "C code holds the interpreter; its"),
        ("locked_in_c", "main", "", "C code holds the interpreter; its process is killed in "),
        ("catches", "main", "", "and it catches that or cleans up for long; its process is killed in "),
        ("blocks_signals", "main", "time.sleep(600)", "it blocks the signal that would do so; its process"),
    ],
)
def test_the_stack_of_a_job_and_why_it_goes_on(
    standing: Site, jobs: dict[str, str], name: str, body: str, at: str, reason: str
) -> None:
    def settled() -> dict[str, Any] | None:
        found = seen(standing, jobs[name])  # an interruption takes half a second to be called in vain
        return found if not found["stop"] or found["interrupted_s"] > 0.5 else None

    found = eventually(settled, "it stands as it will")
    assert (found["job_id"], found["function"], found["attempt"]) == (jobs[name], name, 1)
    assert (found["path"], found["phase"], found["body"]) == ("job", "running", body)
    assert reason in found["why"]
    assert f'"{FILE}", line ' in found["stacks"]
    assert f"in {name}\n" in found["stacks"]
    if at:
        assert f'"{FILE}", line {line_of(at)} in ' in found["stacks"]


def test_an_async_body_that_awaits_is_told_of(standing: Site, jobs: dict[str, str]) -> None:
    page = shown(standing, jobs["sleeps_async"])
    assert "Nothing has asked it to end: its soft limit" in page
    assert "Where an async body awaits can't be seen" in page


def test_a_page_shows_the_function_and_leaves_the_executor_out(standing: Site, jobs: dict[str, str]) -> None:
    page = program(standing, jobs["sleeps"]).stdout
    assert page.startswith(f"job {jobs['sleeps']}: sleeps, attempt 1\n\nIt sleeps or waits for input")
    assert f'  File "{FILE}", line {line_of("time.sleep(600)")} in rest_here\n' in page
    assert "gpu_runner" not in page
    assert "gpu_runner" in shown(standing, jobs["sleeps"], "--all")


def test_a_job_that_does_not_run_is_told_so(standing: Site, jobs: dict[str, str]) -> None:
    waiting = standing.submit("sleeps", {})
    assert f"job {waiting} doesn't run: it waits in the lane of sleeps" in refusal(standing, waiting)
    standing.post(f"/jobs/{waiting}/cancel", b"")
    assert f"job {waiting} doesn't run: it is cancelled" in refusal(standing, waiting)


@pytest.mark.slow
def test_runners_that_do_not_answer_are_named(
    standing: Site, jobs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test here: executors don't outlive a supervisor that is frozen for long."""
    ((runner_id,),) = query(
        standing.database_url, "SELECT session_id::text FROM job WHERE id = %s", jobs["sleeps"]
    )
    runner = next(one for one in standing.processes if one.said(f"registered as runner {runner_id}"))
    with runner.frozen():
        told = refusal(standing, str(uuid.uuid4()))
        assert told.startswith(f"of the runners, ..{runner_id[-8:]} didn't answer within 5 s: ")
        monkeypatch.setattr(runner_requests, "ANSWERED_WITHIN_S", 0.5)  # nobody else is asked
        told = refusal(standing, jobs["sleeps"])
        assert told.startswith(f"the runner of the job, ..{runner_id[-8:]} didn't answer within 0.5 s: ")
