"""Carries out what is decided about models: tells executors, watches them, and says what can't start where.

Everything happens in the supervisor's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpu_runner.frames import AboutModels, Loaded, LoadFailed, Loading, Ready, Unloaded
from gpu_runner.frames import Load as LoadFrame
from gpu_runner.frames import Unload as UnloadFrame
from gpu_runner.residency.book import Book, Place, Spec, State
from gpu_runner.residency.failures import Failures
from gpu_runner.residency.memory import CUDA_SHARE, default_budget, resident
from gpu_runner.residency.plan import Load, Plan, Unload, Want, plan
from gpu_runner.residency.preload import Preload, choose_preload
from gpu_runner.residency.reasons import Reasons
from gpu_runner.residency.standing import MemoryStanding, ModelStanding, standing_of
from gpu_runner.residency.verdicts import Verdicts
from gpu_runner.residency.waking import Waking
from gpu_runner.residency.wants import Asked, Waiting, wants_of
from gpu_runner.residency.watch import Watch
from gpu_runner.slots import MAIN
from headrace.sdk import Function

if TYPE_CHECKING:
    from gpu_runner.children.executors import ExecutorProcess

log = logging.getLogger(__name__)

_TICK_S = 0.05
_GENTLE_TICK_S = 1.0
_ASKED_FOR_S = 60.0  # so long after its last refused call, and twice its load time, is a model still wanted


class Residence:
    """The models of all executors of a runner.

    Args:
        functions: what the runner serves, by name.
        executors: the runner's; the list may grow.
        waiting: the calls that wait, and the slots that each waits for.
        on_change: called when calls may start that couldn't before, or a function's degraded state has
            changed.
        memory: what all executors may take together, in bytes; 0: a share of what their device has.
        load_timeout: after how many seconds an executor that loads is killed.
    """

    def __init__(
        self,
        functions: Mapping[str, Function[Any, Any]],
        executors: Sequence[ExecutorProcess],
        waiting: Callable[[], Iterable[Waiting]],
        on_change: Callable[[], None],
        memory: int = 0,
        load_timeout: float = 600.0,
    ) -> None:
        models = {model.name: model for one in functions.values() for model in one.models.values()}
        specs = [Spec(model.name, model.keep_alive, model.memory or 0) for model in models.values()]
        self.book = Book(specs, 0, memory)
        self.failures = Failures()
        self._needs = {
            name: tuple(dict.fromkeys(model.name for model in function.models.values()))
            for name, function in functions.items()
            if function.models
        }
        self._executors = executors
        self._waiting = waiting
        self._on_change = on_change
        self._reasons = Reasons(self.book, self.failures, self._needs)
        self._asked = Asked()
        self._again: dict[int, list[str]] = {}
        self._pending: list[Load] = []
        """Loads of executors whose main threads are kept for them, and run something else still."""
        self._verdicts = Verdicts(self.book, self.failures)
        self._plan = Plan()
        self._watch = Watch(self.book, load_timeout)
        self._is_wanted = self._is_over = False
        self._is_due_soon = False
        self._waking = Waking(self.look)

    # ------------------------------------------------------------------ what calls do

    def began(self, function: str, executor: ExecutorProcess) -> None:
        """A call has been given to an executor."""
        if self._watch.is_watching:
            self._watch.shares(executor.index)
        if models := self._needs.get(function):
            self.book.began(self._place(executor), models)

    def ended(self, function: str, executor: ExecutorProcess) -> None:
        """It has ended."""
        if self._pending:
            self.look_soon()
        if models := self._needs.get(function):
            place, now = self._place(executor), time.monotonic()
            self.book.ended(place, models, now)
            if self._is_wanted or self._asked.to_go or self._is_over:
                self.look_soon()
            elif max(self.book.next_expiry(place), now + _TICK_S) < self._waking.at:
                self._arm()

    def waits(self, function: str) -> None:
        """A call waits, maybe for its models."""
        if function in self._needs:
            self.look_soon()

    def is_cold(self, function: str) -> bool:
        """Whether its calls wait for models, as no executor has them."""
        return function in self._needs and not any(
            executor.is_ready and function not in executor.lacking for executor in self._executors
        )

    def wait_s(self, function: str) -> float:
        """In how many seconds an executor will have its models, as far as is known."""
        models = self._needs.get(function)
        if models is None or not self.is_cold(function):
            return 0.0
        now = time.monotonic()
        places = [place for place in self.book.places if place.is_up]
        return min((self._watch.seconds_to(place, models, now) for place in places), default=0.0)

    def ask(self, function: str) -> None:
        """A call was refused as its models take too long: they are loaded all the same."""
        if models := self._needs.get(function):
            load_s = sum(self.book.load_s.get(model, 0.0) for model in models)
            self._asked.ask(models, time.monotonic(), max(_ASKED_FOR_S, 2 * load_s))
            self.look_soon()

    def main_wait_s(self) -> float:
        """In how many seconds a main thread will have ended loading, where all of them load."""
        moving: list[Place] = []
        for place in self.book.places:  # one by one: each call that waits asks
            if place.is_up:
                if not place.is_moving:
                    return 0.0
                moving.append(place)
        if not moving:
            return 0.0
        now = time.monotonic()
        return min(self._watch.seconds_to(place, (), now) for place in moving)

    def is_blocked(self, function: str) -> bool:
        """Whether its calls wait for memory that others use."""
        return self._needs.get(function, ()) in self._plan.blocked

    # ------------------------------------------------------------------ what executors do

    def preload(self, executor: ExecutorProcess) -> Preload:
        """The models that an executor is to load before it is ready, as its next life begins."""
        place = self._place(executor)
        self.book.lost(place)
        again = self._again.get(executor.index, [])  # still, should this life come to nothing
        together = max(1, sum(not one.is_ready for one in self._executors))
        chosen = choose_preload(self.book, place, again, self.failures, time.monotonic(), together)
        self._arm()
        return chosen

    def unborn(self, executor: ExecutorProcess) -> None:
        """That life has come to nothing; what it was to load takes no room."""
        self.book.lost(self._place(executor))

    def ready(self, executor: ExecutorProcess, ready: Ready) -> None:
        """An executor takes calls; what it was to load at its start is there, or has failed."""
        place = self._place(executor)
        self._again.pop(executor.index, None)
        for held in list(place.held.values()):
            if held.state is State.LOADING:
                self.book.gone(place, held.model)
        if not self.book.budget:
            self.book.budget = int(ready.memory * CUDA_SHARE) if ready.memory else default_budget()
        self._watch.is_cpu = not ready.memory and ready.device == "cpu"
        place.is_up = True
        self._weigh(executor, place, is_new=not place.held)
        self._reasons.own[executor.index] = ready.degraded
        self._refresh()
        self.look_soon()

    def said(self, executor: ExecutorProcess, frame: AboutModels) -> None:
        """An executor tells what has become of a model."""
        place, now = self._place(executor), time.monotonic()
        match frame:
            case Loading():
                self.book.loading(place, frame.model, now)
                self._watch.begins(place, frame, executor.pid, is_shared=bool(executor.calls))
            case Loaded():
                is_sure = not self._watch.is_shared(place)
                self._watch.ends(place)
                self._verdicts.loaded(place, frame, now, is_sure=is_sure)
                self._weigh(executor, place)
            case LoadFailed():
                self._watch.ends(place)
                if self._verdicts.failed(place, frame, now) and not place.is_up:
                    self._asked.ask((frame.model,), now, _ASKED_FOR_S)  # it had its share of the room only
                self._weigh(executor, place)
            case Unloaded():
                self.book.gone(place, frame.model, frame.bytes)
                self._weigh(executor, place)
                log.info(
                    "executor %d has unloaded model %s: %d bytes are free",
                    executor.index, frame.model, frame.bytes,
                )  # fmt: skip
        if place.is_up:
            self._refresh()
            self.look_soon()  # after those who waited for this have started
        else:
            self._arm()

    def lost(self, executor: ExecutorProcess) -> None:
        """An executor's process has ended; its next life loads again what was there."""
        place, now = self._place(executor), time.monotonic()
        was_killed = self._watch.ends(place) or executor.killed_for is not None or executor.was_frozen
        held = self.book.lost(place)
        for one in held:
            if one.state is State.LOADING and one.begun and not was_killed:
                self._verdicts.died(one.model, executor.exit_code, now)
        held.sort(key=lambda one: one.last_use, reverse=True)
        self._again[executor.index] = [one.model for one in held if one.state is State.RESIDENT]
        self._refresh()
        self.look_soon()

    # ------------------------------------------------------------------ what operators do

    def load(self, model: str) -> None:
        """Have a model loaded, one that has failed as well; nothing happens where it is.

        Raises:
            KeyError: no function here uses such a model.
        """
        _ = self.book.specs[model]
        users = [models for models in self._needs.values() if model in models]
        is_too_large = not all(map(self.book.can_ever_fit, users))
        self._verdicts.asked_again(model, time.monotonic(), is_too_large=is_too_large)
        if self.book.can_ever_fit((model,)):
            self._asked.ask((model,), time.monotonic(), _ASKED_FOR_S)
        self.look_soon()

    def unload(self, model: str) -> bool:
        """Have a model unloaded everywhere; where it is in use, once it isn't, and no call starts before.

        Returns:
            Whether it is idle everywhere, so that this happens now.

        Raises:
            KeyError: no function here uses such a model.
        """
        _ = self.book.specs[model]
        held = [(place, one) for place, one in self.book.all_held() if one.model == model]
        for place, one in held:
            self._asked.to_go.add((place.index, one.model))
        self._asked.drop(model)
        self.look_soon()
        return not any(one.users for _, one in held)

    def is_asked(self, model: str) -> bool:
        """Whether it is to be loaded without a call that waits, and nothing has come of it yet."""
        if model in self.failures:
            return model in self.failures.due(time.monotonic())
        return self._asked.has(model)

    def standing(self) -> list[ModelStanding]:
        """Every model in every executor."""
        return standing_of(self.book, self.failures, time.monotonic())

    def memory(self, device: str) -> MemoryStanding:
        """The budget of the device that executors compute on, and what they take of it."""
        return MemoryStanding(device, self.book.budget, self.book.used)

    # ------------------------------------------------------------------ deciding

    def look_if_short(self) -> None:
        """Decide anew while calls are here, where some executor lacks something."""
        if any(executor.lacking for executor in self._executors):
            self.look_soon()

    def look_soon(self) -> None:
        """Decide anew, after all that happens in this turn of the loop."""
        if not self._is_due_soon:
            self._is_due_soon = True
            asyncio.get_running_loop().call_soon(self.look)

    def look(self) -> None:
        """Decide what to load and unload, and have it done."""
        self._is_due_soon = False
        now = time.monotonic()
        self._enforce(now)
        self._note_running()
        self._asked.forget_past(now, self.book)
        wants = self._wants(now)
        self._is_wanted = bool(wants)
        if wants:
            self._weigh_idle()
        self._plan = decided = plan(self.book, wants, now)
        decided.condemned |= self._asked.to_go
        for place, held in self.book.all_held():
            step = Unload(place.index, held.model)
            held.condemned = step[:] in decided.condemned
            is_idle = place.is_up and held.state is State.RESIDENT and not held.users
            if step[:] in self._asked.to_go and is_idle and step not in decided.steps:
                decided.steps.append(step)
        for step in decided.steps:
            self._do(step, now)
        self._refresh()
        self._is_over = self.book.excess > 0
        self._arm(gentle=all(want.is_gentle for want in wants))

    def _wants(self, now: float) -> list[Want]:
        up = [one for one in self._executors if one.is_ready]
        at = frozenset(one.index for one in up if one.closed_for is None)
        wants = [*wants_of(self._waiting(), self._needs, up), *self._asked.wants(at)]
        wants += [Want((model,), now, at, is_gentle=True) for model in self.failures.due(now)]
        known = self.failures
        return [want for want in wants if want.is_gentle or not any(model in known for model in want.models)]

    def _do(self, step: Load | Unload, now: float) -> None:
        place, executor = self.book.places[step.place], self._executors[step.place]
        if isinstance(step, Load):
            limit = self.book.ask_load(place, step.model, now)
            if place.is_running:
                self._pending.append(step)
                return
            log.info("executor %d is to load model %s", executor.index, step.model)
            executor.send(LoadFrame(step.model, limit))
        else:
            self.book.ask_unload(place, step.model, now)
            executor.send(UnloadFrame(step.model))

    def _note_running(self) -> None:
        """See whose main threads are free, and choose anew where to load what no executor was told yet."""
        for step in self._pending:
            self.book.withdraw(step.place, step.model)
        self._pending.clear()
        for executor in self._executors:
            self._place(executor).is_running = bool(executor.busy[MAIN] or executor.ahead)

    def _refresh(self) -> None:
        """Say of each executor what can't start in it, and why."""
        is_news = False
        for executor in self._executors:
            place = self._place(executor)
            place.is_up = executor.is_ready
            lacking = {name for name, models in self._needs.items() if not place.has(models)}
            degraded = self._reasons.of(place) if place.is_up else executor.degraded
            is_news |= bool(executor.lacking - lacking) or executor.degraded != degraded
            is_news |= executor.is_moving and not place.is_moving
            executor.lacking, executor.degraded, executor.is_moving = lacking, degraded, place.is_moving
        if is_news:
            self._on_change()

    # ------------------------------------------------------------------ time and memory

    def _enforce(self, now: float) -> None:
        """Kill executors that load for too long, or more than there is room for."""
        for offence in self._watch.offences(now):
            place, executor = self.book.places[offence.place], self._executors[offence.place]
            self._verdicts.offended(offence, now)
            place.is_up = False
            log.warning("executor %d is killed: model %s %s", executor.index, offence.model, offence.why)
            executor.kill_loading()

    def _weigh(self, executor: ExecutorProcess, place: Place, *, is_new: bool = False) -> None:
        if self._watch.is_cpu and executor.pid is not None:
            self.book.weighed(place, resident(executor.pid), is_new=is_new)

    def _weigh_idle(self) -> None:
        """What executors take beside their models changes; while calls run it says little."""
        for executor in self._executors:
            place = self._place(executor)
            if place.is_up and not executor.calls and not place.is_moving:
                self._weigh(executor, place)

    def _arm(self, *, gentle: bool = False) -> None:
        """Look again when something may have come of time alone."""
        now = time.monotonic()
        kept = self._plan.kept
        at = min((self.book.next_expiry(place, kept) for place in self.book.places), default=math.inf)
        at = max(min(at, self.failures.next_at(now)), now + _TICK_S)
        if self._watch.is_watching or (self._is_wanted and not gentle):
            at = now + _TICK_S
        elif self._is_wanted:
            at = max(at, now + _GENTLE_TICK_S)
        self._waking.set(at)

    def _place(self, executor: ExecutorProcess) -> Place:
        places = self.book.places
        while len(places) <= executor.index:
            places.append(Place(len(places)))
        return places[executor.index]
