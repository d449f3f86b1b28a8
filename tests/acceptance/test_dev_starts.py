"""How `headrace dev` starts, refuses to, and ends."""

from __future__ import annotations

import pytest
from harness.developer import HEAD, SERVING, TELL, Developer
from harness.site import eventually
from harness.up import Folder


@pytest.fixture
def developer(folder: Folder) -> Developer:
    return Developer(folder)


def test_a_first_start_that_fails_waits_until_the_file_is_mended(developer: Developer) -> None:
    developer.save(HEAD, "def tell(:\n")
    with developer.folder.up(command="dev") as dev:
        assert "mine.py:8: module 'mine' can't be imported: SyntaxError: " in dev.until("SyntaxError")
        dev.until("nothing is served until this is mended")
        developer.answers("mended")
        dev.until("mine.py changed")
        dev.ready()
        assert "Headrace serves at " in dev.said
        assert developer.call() == "mended"
        assert dev.said.count("SyntaxError") == 1
        assert dev.stop() == 0
        assert "Traceback" not in dev.said


@pytest.mark.slow
def test_the_newest_of_several_saves_is_served_by_every_runner_and_ctrl_c_ends_a_swap(
    developer: Developer,
) -> None:
    with developer.dev("--runners", "2") as dev:
        developer.save("import time; time.sleep(60)\n", HEAD, TELL.format(answer="too slow"))
        dev.until("mine.py changed")
        developer.answers("newest")
        dev.until(SERVING)
        assert {developer.call() for _ in range(20)} == {"newest"}
        # Two runners and a spare of each: those that were given up and those that were replaced are gone.
        eventually(lambda: len(developer.runners()) == 4, "nobody is left over")

        developer.answers("never served")
        dev.until("mine.py changed")
        assert dev.stop() == 0
        assert dev.said.endswith("stopped; data stay in .headrace\n")
    assert developer.folder.processes() == []


def test_a_fixed_address_is_refused(developer: Developer) -> None:
    done = developer.folder.run("dev", HEADRACE_RUNNER_ADVERTISE="tcp://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("headrace: HEADRACE_RUNNER_ADVERTISE is the address of one runner")
    assert not developer.folder.home.exists()
