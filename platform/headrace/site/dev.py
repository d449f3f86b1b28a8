"""A site that follows its developer's files: when one changes, runners with the new code replace the old.

A new runner starts beside the old one and takes calls as soon as it is linked; then the old one is asked to
end, and finishes what it has begun. One that doesn't come so far is given up, and nothing has happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from headrace.embedded import EmbeddedPostgres
from headrace.errors import HeadraceError, SettingsError, SetupError
from headrace.settings import ENV_FILE, Settings
from headrace.site.child import Child, describe_end
from headrace.site.project import MOST_FOLDERS, Project, folders_of, forget_compiled
from headrace.site.site import RUNNER_STOP_S, Readiness, Site, Started, open_database
from headrace.site.words import described, names, own_line, why

if TYPE_CHECKING:
    from headrace.database import Database

_POLL_S: Final = 0.02
_CLOCK: Final = "%H:%M:%S"
_LEAVE_S: Final = 5.0
_SLOW_S: Final = 10.0
_GONE_S: Final = 0.2
_AGAIN_S: Final = 1.0
_ACTOR: Final = "headrace dev"


class _Broken(HeadraceError):
    """The new version can't take the place of the old one; the message says why."""


@dataclass(slots=True)
class _Swap:
    """One change on its way.

    Args:
        began: when it was noticed, by the monotonic clock.
        told: whether it was said that it takes long.
        lingering: an old runner to which the gateway still sends calls, if there is one.
    """

    began: float
    told: bool = False
    lingering: Child | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a runner has told the registry of itself.

    Args:
        functions: the names of what it has.
        degraded: what of that it can't execute, with the reasons.
    """

    functions: frozenset[str]
    degraded: dict[str, str]


class DevSite(Site):
    """A site whose runners are replaced whenever a Python file of the project changes.

    A runner that can't start doesn't end the site: it waits for the next change.

    Args:
        settings: as loaded; the address of runners and of their metrics must be left to the site.
        tell: gets a line at each step and for whatever happens later.

    Raises:
        SettingsError: a runner has a fixed address, which two can't have at the same time.
    """

    _runner_module: ClassVar = "gpu_runner.spare"
    _drained_until: ClassVar = "the next start, or the next change of a file"

    def __init__(self, settings: Settings, tell: Callable[[str], None]) -> None:
        super().__init__(settings, tell)
        for name in ("runner_advertise", "runner_metrics"):
            if getattr(settings, name):
                raise SettingsError(
                    f"HEADRACE_{name.upper()} is the address of one runner, but `headrace dev` starts the "
                    "next one beside it: leave it empty, and each runner gets its own"
                )
        self._database_settings = (
            settings if settings.database_url else settings.with_database(EmbeddedPostgres(settings.home).url)
        )
        self._project = Project(folders_of(settings.functions), settings.home)
        self._follower: asyncio.Task[None] | None = None
        self._swap: asyncio.Task[None] | None = None
        self._going: dict[Child, asyncio.Task[None]] = {}
        self._spares: dict[str, Child] = {}  # by the name of the runner that they may replace
        self._number = settings.runners
        self._served: set[str] = set()
        self._replaced: set[str] = set()
        self._since = time.strftime(_CLOCK)
        self._last_error = ""
        self._ends: dict[str, str] = {}  # why a runner ended, as last told, by its name

    async def start(self) -> Started:
        """Start everything, and wait until a runner serves: maybe only after a file was mended.

        Raises:
            SetupError: something else than the project's code is in the way.
        """
        if self._project.is_cut:
            self._tell(f"  this folder has more than {MOST_FOLDERS} folders: those nearest to it are watched")
        self._follower = asyncio.create_task(self._follow())
        self._follower.add_done_callback(self._follower_ended)
        started = await super().start()
        self._since = time.strftime(_CLOCK)
        if self._swap is None:  # else it does so at its end
            self._swap = asyncio.create_task(self._attempt(self._prepare_spares()))
        return started

    async def stop(self) -> None:
        """Stop everything in order; data stay. May be called at any point of the start."""
        tasks = [task for task in (self._follower, self._swap) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().stop()

    def kill(self) -> None:
        """Make a `stop` that is under way quick: gateway and runners end at once."""
        super().kill()
        for child in (*self._going, *self._spares.values()):
            child.kill()

    async def _stop_runners(self, patience: float) -> None:
        self._drop_spares()
        await asyncio.gather(super()._stop_runners(patience), *self._going.values())

    def _fail(self, child: Child, end: str) -> None:
        if child not in self._runners:
            super()._fail(child, end)
            return
        self._complain(why(child, end))

    def _tell_end(self, child: Child, end: str, backoff: float) -> None:
        super()._tell_end(child, end, backoff)
        reason = own_line(child)
        if reason and self._ends.get(child.name) != reason:
            self._ends[child.name] = reason
            self._say(f"{child.name} can't start again until this is mended: {reason}")

    # ------------------------------------------------------------------ changes

    async def _follow(self) -> None:
        while True:
            try:
                async with contextlib.aclosing(self._project.changes()) as changes:
                    async for changed in changes:
                        await self._changed(changed)
            except Exception as error:  # whatever it is, the next change is to be served
                self._complain(f"files couldn't be followed for a moment: {described(error)}")
            await asyncio.sleep(_AGAIN_S)

    def _follower_ended(self, follower: asyncio.Task[None]) -> None:
        if not follower.cancelled() and self._failure is not None and not self._failure.done():
            self._failure.set_exception(
                SetupError(f"files can't be followed any more: {described(follower.exception())}")
            )

    async def _changed(self, changed: list[Path]) -> None:
        code = [path for path in changed if path.name != ENV_FILE]
        if len(code) < len(changed):
            self._say(f"{ENV_FILE} changed: settings are read at the start; end this and start it again")
        if not code:
            return
        began = time.monotonic()
        self._last_error = ""
        self._ends.clear()
        self._say(f"{names(code)} changed")
        if self._swap is not None:
            self._swap.cancel()
            await asyncio.gather(self._swap, return_exceptions=True)
        forget_compiled(code)
        if any(path.is_relative_to(package) for path in code for package in _own_packages()):
            self._drop_spares()  # they have imported what has changed
        self._swap = asyncio.create_task(self._swap_all(_Swap(began)))

    async def _swap_all(self, swap: _Swap) -> None:
        await self._attempt(self._replace_all(swap))
        await self._attempt(self._prepare_spares())

    async def _attempt(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it, and say why if it fails: nobody awaits what follows a change."""
        try:
            await work
        except Exception as error:
            self._complain(described(error))

    async def _replace_all(self, swap: _Swap) -> None:
        await self._asked()  # during the start, the gateway is there after the schema
        async with await open_database(self._database_settings) as database:
            functions: frozenset[str] = frozenset()
            for old in list(self._runners):
                functions = await self._replace(old, database, swap)
            self._since, self._last_error = time.strftime(_CLOCK), ""
            if self._is_ready:  # else the start says so
                self._say(_served(swap))
            await self._tidy(database, functions)

    async def _replace(self, old: Child, database: Database, swap: _Swap) -> frozenset[str]:
        """Start a runner with the new code, and let the old one go once the gateway calls the new one.

        Returns:
            The names of the new runner's functions.
        """
        former = await self._entry(database, old)
        new = self._spares.pop(old.name, None) or self._next(old)
        try:
            if not new.is_running:
                await new.prepare()
            new.go()
            linked = await self._until_linked(new, database, swap)
            self._check_degraded(linked, former)
        except BaseException:
            # One that hasn't come so far as to have calls is gone before the next one imports.
            await asyncio.wait({self._let_go(new)}, timeout=_GONE_S)
            raise
        # Nothing is awaited until it has taken its place: what comes in between would leave it to nobody.
        self._runners[self._runners.index(old)] = new
        self._keep(new)
        self._let_go(old)
        self._replaced.add(old.run_id)
        if former is not None:
            self._served |= former.functions
            if not await self._has_left(old.run_id):
                swap.lingering = old
        return linked.functions

    def _next(self, old: Child) -> Child:
        self._number += 1
        return self._make_runner(self._number, old)

    async def _prepare_spares(self) -> None:
        """Start what will replace each runner as far as it can be without its functions."""
        for runner in list(self._runners):
            if runner.name not in self._spares:
                spare = self._next(runner)
                await spare.prepare()
                self._spares[runner.name] = spare

    def _drop_spares(self) -> None:
        while self._spares:
            self._let_go(self._spares.popitem()[1])

    async def _until_linked(self, new: Child, database: Database, swap: _Swap) -> _Entry:
        """Return once the gateway can call it."""
        ended = asyncio.create_task(new.wait())
        try:
            while not ended.done():
                if new.run_id in (await self._asked()).runners:
                    entry = await self._entry(database, new)
                    if entry is not None:
                        return entry
                if not swap.told and time.monotonic() - swap.began > _SLOW_S:
                    swap.told = True
                    self._say(f"the new version isn't there yet after {_SLOW_S:g} s; log: {new.log}")
                await asyncio.wait({ended}, timeout=_POLL_S)
            raise _Broken(why(new, describe_end(ended.result())))
        finally:
            ended.cancel()

    def _check_degraded(self, linked: _Entry, former: _Entry | None) -> None:
        """See that the new runner can execute whatever the old one could, where there is an old one."""
        known = former.degraded if former is not None else {}
        for name in sorted(linked.degraded.keys() - known):
            if self._is_ready:
                raise _Broken(f"{name}: {' '.join(linked.degraded[name].split())}")

    async def _has_left(self, run_id: str) -> bool:
        """Wait until the gateway sends no more calls there: what is called then runs the new code."""
        deadline = time.monotonic() + _LEAVE_S
        while run_id in (await self._asked()).runners:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    def _let_go(self, child: Child) -> asyncio.Task[None]:
        """Have a runner finish its calls and end."""
        if keeper := self._keepers.pop(child, None):
            keeper.cancel()
        patience = self._settings.drain_seconds + RUNNER_STOP_S
        going = self._going[child] = asyncio.create_task(child.stop(patience))
        going.add_done_callback(lambda _: self._forget(child))
        return going

    def _forget(self, child: Child) -> None:
        del self._going[child]
        Path(_address(child).removeprefix("unix:")).unlink(missing_ok=True)

    async def _tidy(self, database: Database, functions: frozenset[str]) -> None:
        """Take functions out of service that were removed from the code, and that nobody else serves.

        On a database of several sites it is only said: another one's runner may just be starting again.
        """
        from headrace import registry  # noqa: PLC0415 - loads while runners start

        gone, self._served = self._served - functions, set(functions)
        if not gone:
            return
        runners = (await registry.load(database)).runners
        others = [runner.interfaces for runner in runners if runner.runner_id not in self._replaced]
        for name in sorted(gone.difference(*others)):
            if self._postgres is None:
                self._say(
                    f"{name} is gone from the code, and still registered: `headrace functions retire {name}`"
                )
            elif await registry.retire(database, name, actor=_ACTOR):
                self._say(f"{name} is gone from the code, and retired")

    async def _entry(self, database: Database, child: Child) -> _Entry | None:
        """What the registry has of a runner, once that has said what it can execute."""
        from headrace import registry  # noqa: PLC0415 - loads while runners start

        known = await registry.load(database)
        for runner in known.runners:
            if runner.runner_id == child.run_id and (capacity := known.capacity[runner.runner_id]):
                return _Entry(frozenset(runner.interfaces), capacity.get("degraded", {}))
        return None

    async def _asked(self) -> Readiness:
        """What the gateway says, as soon as it says something."""
        while True:
            with contextlib.suppress(OSError):
                return (await self._ask())[1]
            await asyncio.sleep(_POLL_S)

    # ------------------------------------------------------------------ talk

    def _complain(self, reason: str) -> None:
        if reason == self._last_error:  # of several runners with the same code
            return
        self._last_error = reason
        self._say(reason)
        self._tell(
            f"            still serving the version of {self._since}"
            if self._is_ready
            else "            nothing is served until this is mended: waiting for a change"
        )

    def _say(self, text: str) -> None:
        self._tell(f"  {time.strftime(_CLOCK)}  {text}")  # indented, it stays


def _served(swap: _Swap) -> str:
    after = f"{time.monotonic() - swap.began:.1f} s after the change was seen"
    if swap.lingering is None:
        return f"serving the new version, {after}"
    return f"the new version serves {after}, and the old one still beside it; log: {swap.lingering.log}"


def _own_packages() -> list[Path]:
    """Where Headrace itself is, which may be what is developed."""
    specs = [PathFinder.find_spec(name) for name in ("headrace", "gpu_runner")]
    return [Path(place) for spec in specs if spec for place in spec.submodule_search_locations or ()]


def _address(child: Child) -> str:
    return child.environment["HEADRACE_RUNNER_ADVERTISE"]
