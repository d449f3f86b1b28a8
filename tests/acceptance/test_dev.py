"""`headrace dev` as a developer sees it: files are saved, and what is called changes. All in one site."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.developer import HEAD, SERVING, TELL, Developer
from harness.site import eventually
from harness.up import Up, developers_folder

ADDED = """
@function(examples=[{"text": "x"}])
def shout(input: Text) -> str:
    return input.text.upper()
"""
OTHER_INPUT = """
class Number(BaseModel):
    number: int

@function(examples=[{"number": 1}])
def tell(input: Number) -> int:
    return input.number + 1
"""
SLOW = """
@function(examples=[{"text": "x"}])
def wait(input: Text) -> str:
    open(input.text, "w").close()
    time.sleep(3)
    return "old"
"""
BROKEN_MODEL = """
@model()
def gone(device):
    raise OSError("no such weights")

@function(examples=[{"text": "x"}])
def tell(input: Text, *, it: object = uses(gone)) -> str:
    return "never"
"""
FROM_PART = """
from part import ANSWER

@function(examples=[{"text": "x"}])
def tell(input: Text) -> str:
    return ANSWER
"""
VERSIONS = 3


@pytest.fixture(scope="module")
def developer() -> Iterator[Developer]:
    with developers_folder() as folder:
        yield Developer(folder)


@pytest.fixture(scope="module")
def site(developer: Developer) -> Iterator[Up]:
    with developer.dev() as running:
        yield running


@pytest.fixture
def dev(site: Up, developer: Developer) -> Up:
    """It serves a version of its own to each test."""
    developer.begin_anew(site)
    return site


def test_one_that_does_not_import_is_not_served(site: Up, developer: Developer) -> None:
    served = developer.begin_anew(site)
    said = len(site.said)
    developer.save(HEAD, "nothing_of_that_name", TELL.format(answer="three"))
    assert "  mine.py changed\n" in site.until("changed")
    assert re.search(
        r" mine\.py:8: module 'mine' can't be imported: NameError: .*nothing_of_that_name",
        site.until("NameError"),
    )
    site.until("still serving the version of ")
    assert developer.call() == served

    developer.file.touch()  # nothing changes, so nothing is tried
    developer.file.unlink()
    site.until("mine.py changed")
    site.until("there is no module 'mine'")
    site.until("still serving")
    assert developer.call() == served
    assert site.said[said:].count("mine.py:8") == 1


def test_a_runner_that_ends_while_the_files_are_broken_says_why_it_is_away(
    dev: Up, developer: Developer
) -> None:
    developer.save(HEAD, "def tell(:\n")
    dev.until("still serving")
    for runner in developer.runners():
        os.kill(runner, signal.SIGKILL)
    dev.until("runner-1 ended (killed by SIGKILL)")
    assert "mine.py:8: module 'mine' can't be imported" in dev.until("can't start again until this is mended")
    developer.begin_anew(dev)


@pytest.mark.slow
def test_a_change_of_what_the_module_imports_is_served(site: Up, developer: Developer) -> None:
    part = developer.folder.path / "part.py"
    part.write_text("ANSWER = 'four'\n")
    site.until(SERVING)
    developer.save(HEAD, FROM_PART)
    site.until(SERVING)
    assert developer.call() == "four"
    part.write_text("ANSWER = 'five'\n")
    site.until(SERVING)
    assert developer.call() == "five"
    (developer.folder.path / ".env").write_text("SOMETHING=1\n")
    site.until(".env changed: settings are read at the start")


def test_no_call_fails_while_versions_follow_one_another(dev: Up, developer: Developer) -> None:
    with developer.client() as client, ThreadPoolExecutor(1) as pool:
        ended = threading.Event()

        def keep_calling() -> list[object]:
            answers: list[object] = []
            while not ended.is_set():
                answers.append(client.call("tell", {"text": "x"}))
            return answers

        calling = pool.submit(keep_calling)
        with contextlib.ExitStack() as stack:
            stack.callback(ended.set)
            for number in range(VERSIONS):  # the sizes are the same, and the seconds may be
                developer.answers(f"v{number}")
                dev.until(SERVING)
                assert developer.call() == f"v{number}"
        assert set(calling.result()) >= {f"v{number}" for number in range(VERSIONS)}
    eventually(lambda: len(developer.runners()) == 2, "one that serves, and a spare: nobody is left over")


def test_functions_come_change_and_go(site: Up, developer: Developer) -> None:
    developer.save(HEAD, OTHER_INPUT, ADDED)
    site.until(SERVING)
    assert developer.call(number=1) == 2
    assert developer.call("shout", text="a") == "A"

    developer.save(HEAD, ADDED.replace("shout", "cry"))
    site.until(SERVING)
    assert developer.call("cry", text="a") == "A"
    site.until("shout is gone from the code, and retired")
    site.until("tell is gone from the code, and retired")
    assert [developer.refused(name) for name in ("tell", "shout")] == [410, 410]

    developer.begin_anew(site)


@pytest.mark.slow
def test_a_running_call_ends_on_the_code_it_began_with(site: Up, developer: Developer) -> None:
    developer.save(HEAD, SLOW)
    site.until(SERVING)
    began = developer.folder.path / "began"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(developer.call, "wait", text=str(began))
        eventually(began.exists, "the call runs")
        developer.save(HEAD, SLOW.replace("old", "new").replace("sleep(3)", "sleep(0)"))
        site.until(SERVING)
        assert developer.call("wait", text=str(began)) == "new"
        assert running.result() == "old"


@pytest.mark.slow
def test_a_version_whose_model_can_not_be_loaded_is_left_out(site: Up, developer: Developer) -> None:
    served = developer.begin_anew(site)
    developer.save(HEAD, BROKEN_MODEL)
    assert "tell: model mine:gone could not be loaded: OSError: no such weights" in site.until("OSError")
    site.until("still serving")
    eventually(lambda: {developer.call() for _ in range(3)} == {served}, "the old version answers alone")


@pytest.mark.slow
def test_messages_of_exceptions_are_logged(site: Up, developer: Developer) -> None:
    log = developer.folder.home / "logs" / "runner-1.log"
    developer.save(HEAD, TELL.format(answer="x").replace("return", "raise RuntimeError('what went wrong');"))
    site.until(SERVING)
    assert developer.refused("tell") == 500
    eventually(lambda: "what went wrong" in log.read_text(), "the message is in the log")
