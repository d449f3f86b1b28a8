"""The programs of `loadtests` run, and what they do is answered."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness.scripted_site import document, scripted_site
from harness.site import Site, environment, eventually

LOADTESTS = Path(__file__).resolve().parents[2] / "loadtests"
KINDS = {
    "POST /fn/echo",
    "POST /fn/echo, respond-async",
    "GET /jobs/{id}",
    "GET /jobs/{id}/result",
    "GET /jobs",
    "GET /fn",
    "echo, from its submission to the answer that it is final",
}


def test_locust_calls_submits_and_reads_without_a_failure(served: Site, tmp_path: Path) -> None:
    arguments = ["--headless", "-u", "6", "-r", "6", "-t", "60s", "--csv", str(tmp_path / "load")]
    with subprocess.Popen(
        [sys.executable, "-m", "locust", "-f", str(LOADTESTS / "locustfile.py"), *arguments],
        env=environment(HEADRACE_URL=served.url, HEADRACE_KEY=served.key, LOAD_CALL="echo", LOAD_JOB="echo"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as locust:
        eventually(lambda: set(counts(tmp_path, locust)) >= KINDS, "a request of each kind", within=50)
        locust.send_signal(signal.SIGTERM)
        said, _ = locust.communicate(timeout=30)

    found = counts(tmp_path, locust)
    assert locust.returncode == 0, said
    assert {name: failures for name, (_, failures) in found.items() if failures} == {}
    assert found["POST /fn/echo"][0] > 10


def test_busy_has_a_name_of_its_own_and_is_no_failure(tmp_path: Path) -> None:
    busy = document({"code": "busy", "title": "No room for the call now"}, 503, Retry_After="1")
    with scripted_site() as site:
        site.on("POST /fn/embed", busy)
        code, said, found = callers(site.url, tmp_path / "busy", "POST /fn/embed (busy)")
        assert code == 0, said
        assert "POST /fn/embed" not in found

        site.on("POST /fn/embed", document({"code": "no-runner", "title": "None"}, 503))
        code, said, found = callers(site.url, tmp_path / "down", "POST /fn/embed")
        assert code == 1
        assert found["POST /fn/embed"][1] > 0
        assert "status 503 no-runner" in said


def callers(url: str, folder: Path, until: str) -> tuple[int, str, dict[str, tuple[int, int]]]:
    """A run of synchronous calls alone, until one got that name: exit status, output, and counts."""
    folder.mkdir()
    arguments = ["--headless", "-u", "1", "-r", "1", "-t", "60s", "--csv", str(folder / "load"), "Caller"]
    with subprocess.Popen(
        [sys.executable, "-m", "locust", "-f", str(LOADTESTS / "locustfile.py"), *arguments],
        env=environment(HEADRACE_URL=url, HEADRACE_KEY="hr_x"),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as locust:
        eventually(lambda: until in counts(folder, locust), until, within=50)
        locust.send_signal(signal.SIGTERM)
        said, _ = locust.communicate(timeout=30)
    return locust.returncode, said, read(folder / "load_stats.csv")


def test_make_hands_on_what_is_given_to_locust() -> None:
    said = subprocess.run(
        ["make", "-n", "-o", ".venv/.ready", "load", "ARGS=--headless -u 2 -r 2 -t 5s"],
        cwd=LOADTESTS.parent,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert said.stdout.rstrip().endswith(" --web-host 127.0.0.1 --headless -u 2 -r 2 -t 5s"), said.stderr


def counts(folder: Path, locust: subprocess.Popen[str]) -> dict[str, tuple[int, int]]:
    """Requests and failures by name."""
    path = folder / "load_stats.csv"
    if not path.exists():
        assert locust.poll() is None, "it ended by itself"
        return {}
    return read(path)


def read(path: Path) -> dict[str, tuple[int, int]]:
    """The whole lines: locust empties the file and writes it anew while it runs."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(line for line in file if line.endswith("\n")))
    return {
        row["Name"]: (int(row["Request Count"]), int(row["Failure Count"]))
        for row in rows
        if row.get("Failure Count")
    }


@pytest.mark.parametrize(
    ("program", "arguments", "expected"),
    [
        (
            "ledger_cost.py",
            ["--rounds", "20", "--waiting", "200", "--finished", "200", "--old", "200", "--own", "200"],
            [r"^200 waiting in another +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d +\d+$"] * 4,
        ),
        (
            "stream_cost.py",
            ["--items", "100", "--rounds", "1"],
            [r"^ +\d+ +\d+\.\d +\d+\.\d\d +\d+\.\d\d +\d+ +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d$"] * 4,
        ),
        (
            "submit_rate.py",
            ["--jobs", "100", "--connections", "4", "--rounds", "1", "--singles", "3"],
            [
                r"^round 1: \d+ jobs/s accepted, .* 0 errors; all executed after",
                r"^accepted until executed: p50 ",
            ],
        ),
        (
            "places.py",
            ["--seconds", "5", "--modes", "key", "--gateways", "2", "--distributions", "erlang"],
            [
                r"^\| erlang \| 2 \| its key \| .* \| 0 \| 0 \| \d+\.\d% \| \d+ \|$",
            ],
        ),
    ],
)
@pytest.mark.slow
def test_measurements_come_to_an_end(program: str, arguments: list[str], expected: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(LOADTESTS / program), *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    for pattern in expected:
        found = re.findall(pattern, done.stdout, re.MULTILINE)
        assert len(found) == expected.count(pattern), done.stdout
