"""The commands that submit, follow and cancel jobs, on a real site."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid

from harness.site import Site, environment, eventually


def headrace(served: Site, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        env=environment(
            HEADRACE_URL=served.url, HEADRACE_KEY=served.key, HEADRACE_DATABASE_URL=served.database_url
        ),
        cwd=served.folder,
        capture_output=True,
        text=True,
        check=False,
    )


def submitted(served: Site, name: str, value: object) -> str:
    done = headrace(served, "call", name, json.dumps(value), "--async")
    assert (done.returncode, done.stderr) == (0, "")
    return str(uuid.UUID(done.stdout.strip()))


def submitted_and_done(served: Site) -> str:
    job_id = submitted(served, "echo", {"text": "a"})
    served.final(job_id)
    return job_id


def test_a_submitted_call_is_followed_to_its_result(served: Site) -> None:
    job_id = submitted(served, "echo", {"text": "ä", "top_k": 3})
    done = headrace(served, "jobs", "follow", job_id)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"text": "ä", "n": 3, "scores": []}
    again = headrace(served, "jobs", "follow", job_id)
    assert (again.returncode, again.stdout, again.stderr) == (0, done.stdout, "")


def test_a_job_is_shown_and_listed(served: Site) -> None:
    job_id = submitted(served, "echo", {"text": "shown"})
    served.final(job_id)
    shown = headrace(served, "jobs", "show", job_id)
    as_json = headrace(served, "jobs", "show", job_id, "--json")
    listed = headrace(served, "jobs", "list", "--function", "echo", "--status", "succeeded")
    one = headrace(served, "jobs", "list", "--json", "--limit", "1")

    lines = dict(line.split(maxsplit=1) for line in shown.stdout.splitlines())
    assert (lines["job"], lines["function"], lines["status"]) == (job_id, "echo", "succeeded")
    assert json.loads(lines["result"]) == json.loads(as_json.stdout)["result"]
    assert json.loads(lines["result"])["text"] == "shown"
    assert [job_id, "echo", "succeeded", "1"] in [line.split()[:4] for line in listed.stdout.splitlines()]
    assert [job["job_id"] for job in json.loads(one.stdout)] == [job_id]


def test_a_job_that_fails_is_an_error(served: Site) -> None:
    job_id = submitted(served, "fails", {})
    done = headrace(served, "jobs", "follow", job_id)

    assert (done.returncode, done.stdout) == (1, "")
    assert (
        "headrace: the job failed: the archive has burnt down (function-failed)" in done.stderr.splitlines()
    )


def test_a_running_job_is_cancelled(served: Site) -> None:
    job_id = submitted(served, "watched", {"path": "/dev/null"})
    eventually(lambda: served.job(job_id)["status"] == "running", "it runs")
    done = headrace(served, "jobs", "cancel", job_id)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split()[0] == job_id
    followed = headrace(served, "jobs", "follow", job_id)
    assert followed.returncode == 1
    assert "headrace: the job was cancelled" in followed.stderr.splitlines()


def test_a_finished_job_cannot_be_cancelled(served: Site) -> None:
    done = headrace(served, "jobs", "cancel", submitted_and_done(served))

    assert (done.returncode, done.stdout) == (1, "")
    assert "The job is already finished" in done.stderr


def test_events_tell_each_state(served: Site) -> None:
    job_id = submitted_and_done(served)
    done = headrace(served, "jobs", "events", job_id)

    assert done.returncode == 0, done.stderr
    assert [line.split()[1:4] for line in done.stdout.splitlines()] == [
        ["FROM", "TO", "ATTEMPT"],
        ["-", "queued", "0"],
        ["queued", "running", "1"],
        ["running", "succeeded", "1"],
    ]


def test_the_events_of_an_unfinished_job_come_at_once(served: Site) -> None:
    job_id = submitted(served, "watched", {"path": "/dev/null"})
    eventually(lambda: served.job(job_id)["status"] == "running", "it runs")
    done = headrace(served, "jobs", "events", job_id)

    assert done.stdout.splitlines()[-1].split()[1:4] == ["queued", "running", "1"]
    assert headrace(served, "jobs", "cancel", job_id).returncode == 0


def test_another_owners_job_is_unknown(served: Site) -> None:
    job_id = submitted_and_done(served)
    key = headrace(served, "keys", "create", "--owner", "somebody else").stdout.strip()
    done = headrace(served, "jobs", "show", job_id, "--key", key)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("headrace: No such job")


def test_status_shows_lanes_runners_and_gateways(served: Site) -> None:
    job_id = submitted(served, "watched", {"path": "/dev/null"})
    eventually(lambda: served.job(job_id)["status"] == "running", "it runs")
    done = headrace(served, "status", "--json")
    told = headrace(served, "status")
    served.post(f"/jobs/{job_id}/cancel", b"")

    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)
    watched = next(lane for lane in status["lanes"] if lane["function"] == "watched")
    bounds = dict.fromkeys(("most_waiting", "most_cost", "most_age_s"))  # it has none of its own
    counts = {"waiting": 0, "oldest_s": None, "running": 1, "runners": 1}
    assert watched == {"function": "watched", **counts, **bounds}
    [runner] = status["runners"]
    assert "watched" in runner["functions"]
    assert not runner["draining"]
    assert len(status["gateways"]) == 1
    assert told.returncode == 0
    blocks = [block.splitlines() for block in told.stdout.split("\n\n")]
    assert [block[0].split()[0] for block in blocks] == ["LANE", "RUNNER", "GATEWAY"]
    assert ["watched", "0", "-", "1", "1", "-"] in [line.split() for line in blocks[0]]
    assert blocks[1][1].split()[:3] == [runner["runner_id"], "default", "-"]  # no labels
    assert "serves" in blocks[1][1].split()
    assert blocks[2][1].split()[0] == status["gateways"][0]["gateway_id"]
