"""What a function's developer finds when something goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.postgres import Clones
from harness.problem import problem
from harness.site import eventually, site


def test_messages_of_exceptions_are_logged_where_that_is_wanted(clones: Clones) -> None:
    with clones.migrated() as url, site(url, settings={"HEADRACE_LOG_ERRORS": "true"}) as talkative:
        document = problem(talkative.call("breaks", {}), 500, "function-failed")
        assert "secret-in-a-message" not in str(document)
        problem(talkative.call("never_recovers", {}), 500, "attempts-exhausted")
        said = "".join(process.output() for process in talkative.processes)
        assert "RuntimeError: secret-in-a-message" in said
        assert "TransientError: not yet" in said


THREAD = """
import threading
from headrace import function

def fail() -> None:
    raise RuntimeError("secret-of-a-thread")

class Last:
    def __del__(self) -> None:
        raise RuntimeError("secret-of-a-finaliser")

@function()
def careless(input: int) -> int:
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    Last()
    return input
"""


def test_what_threads_and_finalisers_raise_is_logged_without_its_message(clones: Clones) -> None:
    with clones.migrated() as url, site(url, runners=0) as quiet:
        quiet.write_module("careless", THREAD)
        quiet.start_runner(HEADRACE_FUNCTIONS="careless")
        quiet.wait_ready()
        assert quiet.call("careless", 3).json() == 3
        said = "".join(process.output() for process in quiet.processes)
        assert "a thread failed: RuntimeError at" in said
        assert "an exception had nowhere to go: RuntimeError at" in said
        assert "secret-of" not in said


def test_a_lost_executor_is_named_with_the_job_that_it_ran(clones: Clones) -> None:
    with clones.migrated() as url, site(url) as fragile:
        document = problem(fragile.call("dies", {}), 502, "worker-lost")
        assert document["detail"].endswith("at each of its 2 starts.")
        eventually(
            lambda: "of dies (attempt 2)" in "".join(process.output() for process in fragile.processes),
            "the log names the function",
        )


@pytest.mark.slow
@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_named(clones: Clones) -> None:
    with clones.migrated() as url, site(url, runners=0, settings={"HEADRACE_DEVICE": "cuda"}) as wishful:
        wishful.start_runner()
        reasons = eventually(
            lambda: wishful.client.get("/readyz").json()["functions"].get("echo", {}).get("degraded"),
            "the gateway knows why",
        )
        assert reasons[0].startswith("HEADRACE_DEVICE=cuda, but")
        problem(wishful.call("echo", {"text": "a"}), 503, "function-degraded")
