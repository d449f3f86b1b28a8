"""How a site that follows files replaces its runners, and what becomes of them when something goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace import registry
from headrace.cli.dev import _with_messages
from headrace.database import Database
from headrace.domain import RunnerInfo
from headrace.errors import DatabaseError, SetupError
from headrace.settings import Settings, load_settings
from headrace.site import dev
from headrace.site.child import Child
from headrace.site.dev import DevSite
from headrace.site.site import Readiness


class Runner(Child):
    """A runner that is there at once, and ends when it is asked to."""

    def __init__(self, name: str, number: int, folder: Path) -> None:
        address = f"unix:{folder}/{number}.sock"
        super().__init__(name, [], {"HEADRACE_RUNNER_ADVERTISE": address}, folder / "runner.log")
        self.run_id = f"id-{number}"
        self.lines: list[str] = []
        self.state = ""
        self.ended = asyncio.get_running_loop().create_future()

    @property
    def is_running(self) -> bool:
        return self.state != "" and not self.ended.done()

    async def prepare(self) -> None:
        await asyncio.sleep(0)
        self.state = "prepared"

    def go(self) -> None:
        self.state = "serves"

    async def wait(self) -> int:
        return await asyncio.shield(self.ended)

    async def stop(self, patience: float) -> None:
        self.end(0)

    def end(self, code: int) -> None:
        if not self.ended.done():
            self.ended.set_result(code)

    def last_lines(self, count: int) -> list[str]:
        return self.lines


class Site(DevSite):
    """One whose gateway calls every runner that serves, and whose registry is a list."""

    def __init__(self, settings: Settings) -> None:
        self.said: list[str] = []
        super().__init__(settings, self.said.append)
        self.made: list[Runner] = []
        self.functions = ["tell"]
        self.degraded: dict[str, dict[str, str]] = {}
        self.others: list[RunnerInfo] = []
        self.stays_linked: set[str] = set()
        self.database_error: Exception | None = None
        self.links = True
        self._is_ready = True
        self._failure = asyncio.get_running_loop().create_future()

    def _make_runner(self, number: int, former: Child | None = None) -> Child:
        name = f"runner-{number}" if former is None else former.name
        self.made.append(Runner(name, number, self._settings.home))
        return self.made[-1]

    async def begin(self) -> Runner:
        first = cast(Runner, self._make_runner(1))
        await first.start()
        self._runners.append(first)
        self._keep(first)
        return first

    def linked(self) -> list[str]:
        return [one.run_id for one in self.made if one.state == "serves" and self._is_called(one)]

    def _is_called(self, runner: Runner) -> bool:
        if runner.ended.done():
            return runner.run_id in self.stays_linked
        return self.links or runner is self.made[0]

    async def _asked(self) -> Readiness:
        await asyncio.sleep(0)
        return Readiness(runners=self.linked())

    async def change(self) -> None:
        await self._changed([Path.cwd() / "mine.py"])

    async def swapped(self) -> None:
        assert self._swap is not None
        await self._swap

    @property
    def runner(self) -> Runner:
        (one,) = self._runners
        return cast(Runner, one)

    def owned(self) -> set[Child]:
        """All that `stop` ends."""
        return {*self._runners, *self._going, *self._spares.values()}

    def has_said(self, text: str) -> bool:
        return any(text in line for line in self.said)


@pytest.fixture
def retired(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []

    async def retire(_database: Database, name: str, *, actor: str) -> bool:
        names.append(name)
        return True

    monkeypatch.setattr(registry, "retire", retire)
    return names


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retired: list[str]
) -> Callable[[Callable[[Site], Any]], None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dev, "_LEAVE_S", 0.05)
    monkeypatch.setattr(dev, "_AGAIN_S", 0.0)

    @contextlib.asynccontextmanager
    async def opened(*_: object) -> AsyncIterator[None]:
        yield None

    async def open_database(*_: object) -> object:
        return opened()

    monkeypatch.setattr(dev, "open_database", open_database)

    def go(scenario: Callable[[Site], Any], url: str = "") -> None:
        async def all_of_it() -> None:
            site = Site(Settings(home=tmp_path / "home", database_url=url))

            async def load(_database: object) -> object:
                await asyncio.sleep(0)
                if site.database_error is not None:
                    raise site.database_error
                interfaces = dict.fromkeys(site.functions, "0")
                infos = [RunnerInfo(one.run_id, None, "default", interfaces) for one in site.made]
                capacity = {one.run_id: {"degraded": site.degraded.get(one.run_id, {})} for one in site.made}
                return SimpleNamespace(runners=[*infos, *site.others], capacity=capacity)

            monkeypatch.setattr(registry, "load", load)
            async with asyncio.timeout(20):
                await scenario(site)
                for task in (site._swap, site._follower, *site._keepers.values()):
                    if task is not None:
                        task.cancel()
                        await asyncio.gather(task, return_exceptions=True)

        asyncio.run(all_of_it())

    return go


def test_a_change_puts_a_new_runner_and_a_spare_in_place(run: Callable[..., None]) -> None:
    async def scenario(site: Site) -> None:
        old = await site.begin()
        await site.change()
        await site.swapped()
        assert site.runner.run_id == "id-2"
        assert old.ended.done()
        assert site.has_said("serving the new version")
        assert [one.state for one in site.made[2:]] == ["prepared"]

    run(scenario)


def test_a_database_that_fails_leaves_the_old_runner_and_nobody_without_an_owner(
    run: Callable[..., None],
) -> None:
    async def scenario(site: Site) -> None:
        old = await site.begin()
        site.database_error = DatabaseError("Postgres is away")
        await site.change()
        await site.swapped()
        assert site.runner is old
        assert not old.ended.done()
        assert site.has_said("Postgres is away")
        assert site.has_said("still serving the version of")
        assert site.owned() >= {one for one in site.made if one.is_running}

    run(scenario)


@pytest.mark.parametrize("turns", range(40))
def test_a_save_at_any_moment_of_a_swap_leaves_no_runner_without_an_owner(
    run: Callable[..., None], turns: int
) -> None:
    async def scenario(site: Site) -> None:
        await site.begin()
        await site._prepare_spares()
        await site.change()
        for _ in range(turns):
            await asyncio.sleep(0)
        await site.change()
        for one in site.made:
            assert one in site.owned() or not one.is_running
        await site.swapped()
        assert site.runner.state == "serves"
        assert site.runner in site._keepers
        assert [one for one in site.made if one.is_running and one not in site.owned()] == []

    run(scenario)


def test_an_error_that_nobody_expected_is_told_and_the_next_change_is_served(
    run: Callable[..., None],
) -> None:
    async def scenario(site: Site) -> None:
        await site.begin()
        site.database_error = KeyError("a mistake in here")
        await site.change()
        await site.swapped()
        assert site.has_said("KeyError('a mistake in here')")
        site.database_error = None
        await site.change()
        await site.swapped()
        assert site.has_said("serving the new version")

    run(scenario)


def test_only_what_the_new_runner_itself_can_not_execute_keeps_it_out(run: Callable[..., None]) -> None:
    async def scenario(site: Site) -> None:
        site.others = [RunnerInfo("id-9", None, "default", {"theirs": "0"})]
        old = await site.begin()
        site.degraded = {"id-1": {"known": "no weights"}, "id-2": {"known": "no weights", "tell": "no  GPU"}}
        await site.change()
        await site.swapped()
        assert site.runner is old
        assert site.has_said("tell: no GPU")
        site.degraded = {"id-1": {"known": "no weights"}, "id-3": {"known": "no weights"}}
        await site.change()
        await site.swapped()
        assert site.runner.run_id == "id-3"

    run(scenario)


def test_an_old_runner_that_the_gateway_still_calls_is_told_of(run: Callable[..., None]) -> None:
    async def scenario(site: Site) -> None:
        await site.begin()
        site.stays_linked = {"id-1"}
        await site.change()
        await site.swapped()
        assert site.has_said("the old one still beside it")
        assert not site.has_said("serving the new version")

    run(scenario)


@pytest.mark.parametrize("url", ["", "postgresql://127.0.0.1/shared"])
def test_what_is_gone_is_retired_only_where_nobody_else_can_serve_it(
    run: Callable[..., None], retired: list[str], url: str
) -> None:
    async def scenario(site: Site) -> None:
        site.others = [RunnerInfo("id-9", None, "default", {"theirs": "0"})]
        site.functions = ["gone", "tell", "theirs"]
        await site.begin()
        await site.change()
        await site.swapped()
        site.functions = ["tell"]
        await site.change()
        await site.swapped()
        assert retired == ([] if url else ["gone"])
        assert url == "" or site.has_said("still registered: `headrace functions retire gone`")

    run(scenario, url)


def test_a_runner_that_can_not_start_again_says_why_once(run: Callable[..., None]) -> None:
    async def scenario(site: Site) -> None:
        first = await site.begin()
        first.lines = ["Traceback of before", "headrace runner: mine.py:8: SyntaxError", "{}"]
        for _ in range(2):
            site._tell_end(first, "exit code 1", 0.5)
        told = [line for line in site.said if "can't start again until this is mended: mine.py:8" in line]
        assert len(told) == 1
        await site.change()
        site._tell_end(first, "exit code 1", 0.5)
        assert len([line for line in site.said if "can't start again" in line]) == 2

    run(scenario)


def test_a_drained_runner_says_that_the_next_change_brings_it_back(run: Callable[..., None]) -> None:
    async def scenario(site: Site) -> None:
        first = await site.begin()
        first.end(0)
        await site._keepers[first]
        assert site.has_said("stays away until the next start, or the next change of a file")
        await site.change()
        await site.swapped()
        assert site.runner.is_running

    run(scenario)


class Panic(BaseException):
    """As a library in another language raises."""


async def follow(site: Site, errors: list[BaseException]) -> None:
    async def changes() -> AsyncGenerator[list[Path]]:
        if errors:
            raise errors.pop(0)
        yield [Path.cwd() / "mine.py"]
        await asyncio.Event().wait()

    await site.begin()
    site._project.changes = changes
    site._follower = asyncio.create_task(site._follow())
    site._follower.add_done_callback(site._follower_ended)


def test_what_fails_while_files_are_followed_is_told_and_they_are_followed_on(
    run: Callable[..., None],
) -> None:
    async def scenario(site: Site) -> None:
        await follow(site, [ValueError("a strange path")])
        while site.runner.run_id == "id-1":
            await asyncio.sleep(0)
        assert site.has_said("files couldn't be followed for a moment: ValueError('a strange path')")

    run(scenario)


def test_a_site_whose_files_are_not_followed_any_more_fails(run: Callable[..., None]) -> None:
    async def scenario(site: Site) -> None:
        await follow(site, [Panic("thread panicked")])
        with pytest.raises(SetupError, match=r"files can't be followed any more: Panic\('thread panicked'\)"):
            await site.failed()

    run(scenario)


def test_messages_of_exceptions_are_logged_unless_the_developer_said_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_LOG_ERRORS", raising=False)
    assert _with_messages(load_settings()).log_errors
    monkeypatch.setenv("HEADRACE_LOG_ERRORS", "false")
    assert not _with_messages(load_settings()).log_errors
