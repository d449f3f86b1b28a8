"""Takes every step that the model of a handover allows, and tells which promises don't hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from harness.handover_model import KEPT, OPTIONAL, Rules, World, steps


class Explored(NamedTuple):
    """What was found.

    Args:
        states: how many.
        seen: the names of the steps that were taken.
        runner: the states in which it was.
        answers: how clients stand at the ends.
        broken: by each promise that is broken, the shortest way there.
        residual: the shortest way to a start that comes after a 200; None where there is none.
    """

    states: int
    seen: frozenset[str]
    runner: frozenset[str]
    answers: frozenset[str]
    broken: dict[str, str]
    residual: str | None


def explore(faults: int, attempts: int, rules: Rules = KEPT) -> Explored:
    """Take every step from the sending of the call on."""
    first = World(faults=faults, attempts=attempts)
    came: dict[World, tuple[str, World] | None] = {first: None}
    todo, names, answers = deque([first]), set[str](), set[str]()
    broken: dict[str, World] = {}
    residual: World | None = None
    while todo:
        world = todo.popleft()
        following = list(steps(world, rules))
        progress = [name for name, _ in steps(world._replace(faults=0), rules) if name not in OPTIONAL]
        if not progress:
            answers.add(world.client)
        for promise in broken_promises(world, had=faults, is_end=not progress):
            broken.setdefault(promise, world)
        for name, after in following:
            names.add(name)
            if after not in came:
                came[after] = (name, world)
                todo.append(after)
            for promise in broken_by(world, after):
                broken.setdefault(promise, after)
            if world.client == "200" and after.starts > world.starts:
                residual = residual or after
    ways = {promise: _way(came, world) for promise, world in broken.items()}
    again = None if residual is None else _way(came, residual)
    runner = frozenset(world.runner for world in came)
    return Explored(len(came), frozenset(names), runner, frozenset(answers), ways, again)


def broken_promises(world: World, *, had: int, is_end: bool) -> Iterator[str]:
    """Those that don't hold of a state; `had`: how many faults there could be, `is_end`: no more comes."""
    row = world.row
    if world.starts > world.attempts:
        yield "more starts than attempts"
    if world.starts > 1 and world.faults == had:
        yield "started twice though nothing failed"
    if world.client == "202" and row is None:
        yield "202 without a row"
    if not is_end:
        return
    if row is not None and row.state not in ("succeeded", "failed"):
        yield "a row that never ends"
    if world.client == "waiting" and world.gateway != "dead":
        yield "a client that is never answered"
    if world.client == "200" and world.faults == had and row is not None and row.state != "succeeded":
        yield "200 though the job has failed"
    if world.client in ("502", "503") and world.faults == had:
        yield "an error though nothing failed"


def broken_by(world: World, after: World) -> Iterator[str]:
    """Promises that a step breaks."""
    if world.row is not None and world.row.state in ("succeeded", "failed") and after.row != world.row:
        yield "a final state that isn't"
    if world.client == "waiting" and after.client == "502" and after.row is not None and not after.is_away:
        yield "502 though the job is recorded"


def _way(came: dict[World, tuple[str, World] | None], world: World) -> str:
    names: list[str] = []
    while (before := came[world]) is not None:
        names.append(before[0])
        world = before[1]
    return ", ".join(reversed(names))
