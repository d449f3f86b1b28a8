"""A direct call that becomes a job while it runs: all that may happen, in all orders, as a graph of states.

One call, its client and its gateway, the runner that executes it, the ledger with the call's row,
maintenance, and any other runner, which takes the job when it waits. Frames arrive in order, or not at all
once their link is cut. Whoever is quick and whoever is slow is left open: every step that is possible is
tried. Faults are steps too, of which there are so many and no more.

docs/handover.md tells the same in words. Where this, the code and that page differ, one of them is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

HELD: Final = 1
"""The token of the start that a runner executes directly; others come from claims."""


class Row(NamedTuple):
    """The call's row in the ledger."""

    state: str  # queued running succeeded failed
    token: int
    attempt: int
    charged: int


class World(NamedTuple):
    """Everything at one moment."""

    faults: int  # that may still happen
    attempts: int  # charged starts that the call is allowed
    client: str = "waiting"  # left, or the status that it was answered with
    gateway: str = "holding"  # asked (HANDOVER is sent), finished, dead
    is_linked: bool = True
    to_runner: tuple[str, ...] = ("CALL",)
    to_gateway: tuple[str, ...] = ()
    runner: str = "unaware"  # waiting direct recording ledger settling returning over dead
    body: str = "none"  # running done lost
    insert: str = "none"  # under way, or what the runner knows: committed fenced nothing unknown
    is_late: bool = False  # an insert, whose reply nobody reads, may yet arrive at Postgres
    is_away: bool = False  # Postgres
    row: Row | None = None
    attempt: int = 0  # starts that the gateway knows to be lost
    charged: int = 0
    starts: int = 0


Step: TypeAlias = tuple[str, World]


class Rules(NamedTuple):
    """What keeps the promises; a test leaves one out and sees that something breaks."""

    tells_fenced: bool = True
    """FENCED is sent, and not only the work stopped."""
    ignores_late_stop: bool = True
    """STOP counts until HANDOVER was read, and not after."""
    settles: bool = True
    """A call that ended with its recording unknown is finished in the ledger too."""
    names_token: bool = True
    """Whatever a runner writes of a job names the token of its start."""
    joins: bool = True
    """A submission whose id is in the ledger changes nothing."""
    looks: bool = True
    """Where no start is left, a lost call that was to be recorded is looked for in the ledger."""


KEPT: Final = Rules()
OPTIONAL: Final = frozenset({"the client leaves", "the deadline passes"})
"""Steps that nobody may count on."""


def steps(world: World, rules: Rules) -> Iterator[Step]:
    """Each that may come next."""
    yield from _client(world)
    yield from _gateway(world, rules)
    yield from _runner(world, rules)
    yield from _postgres(world)
    yield from _others(world)
    if world.faults:
        for name, after in _faults(world):
            yield name, after._replace(faults=world.faults - 1)


# -------------------------------------------------------------------- client and gateway


def _client(world: World) -> Iterator[Step]:
    if world.client == "waiting" and world.gateway != "dead":
        yield "the client leaves", world._replace(client="left")


def _gateway(world: World, rules: Rules) -> Iterator[Step]:
    if world.gateway not in ("holding", "asked"):
        return
    waits = world.client == "waiting"
    if not world.is_linked:
        yield from _lost(world, rules, "finds the link cut")
        return
    if world.to_gateway:
        frame, *rest = world.to_gateway
        read = world._replace(to_gateway=tuple(rest))
        match frame:
            case "RESULT":
                yield "the gateway reads RESULT", _answered(read, "200")
            case "HANDED" | "FENCED":
                yield f"the gateway reads {frame}", _answered(read, "202")
            case "WITHDRAWN":
                yield "the gateway reads WITHDRAWN", _submitted(read, rules, "503")
            case _:
                yield from _lost(read, rules, "reads LOST")
    if waits and world.gateway == "holding":
        yield "the gateway sends HANDOVER", _send(world._replace(gateway="asked"), "HANDOVER")
    if not waits:
        yield "the gateway sends STOP", _send(world._replace(gateway="finished"), "STOP")
    if waits:
        yield "the deadline passes", _send(_answered(world, "504"), "STOP")


def _lost(world: World, rules: Rules, how: str) -> Iterator[Step]:
    """A start is lost, as far as the gateway can know."""
    if world.client != "waiting":
        yield f"the gateway {how} for nobody", world._replace(gateway="finished")
        return
    world = world._replace(attempt=world.attempt + 1, charged=world.charged + 1)
    if world.charged >= world.attempts:
        is_there = rules.looks and world.gateway == "asked" and not world.is_away and world.row is not None
        yield f"the gateway {how} for the last time", _answered(world, "202" if is_there else "502")
        return
    yield f"the gateway {how} and submits", _submitted(world, rules, "503")
    if world.gateway == "holding":  # nothing is recorded: the earlier runner ends it, another may have it
        again = world._replace(is_linked=True, to_runner=("CALL",), to_gateway=(), runner="unaware")
        yield f"the gateway {how} and calls again", again._replace(body="none", insert="none")


def _submitted(world: World, rules: Rules, refused: str) -> World:
    if world.is_away:
        return _answered(world, refused)
    if world.row is None or not rules.joins:
        world = world._replace(row=Row("queued", 0, world.attempt, world.charged))
    return _answered(world, "202")


def _answered(world: World, status: str) -> World:
    client = status if world.client == "waiting" else world.client
    return world._replace(gateway="finished", client=client)


def _send(world: World, frame: str) -> World:
    return world._replace(to_runner=(*world.to_runner, frame)) if world.is_linked else world


# -------------------------------------------------------------------- the runner


def _runner(world: World, rules: Rules) -> Iterator[Step]:
    if world.runner in ("dead", "over") or (world.runner == "unaware" and not world.is_linked):
        return
    if world.to_runner and world.is_linked:
        frame, *rest = world.to_runner
        yield from _frame(world._replace(to_runner=tuple(rest)), frame, rules)
    if world.body == "running":
        yield "the function returns", world._replace(body="done")
    match world.runner:
        case "waiting" | "direct":
            yield from _direct(world)
        case "recording":
            yield from _recording(world, rules)
        case "ledger":
            yield from _held(world, rules)
        case "settling" | "returning":
            yield from _settling(world, rules)


def _direct(world: World) -> Iterator[Step]:
    if world.runner == "waiting":
        yield "the runner starts the call", _started(world)
    elif world.body != "running":
        frame = "RESULT" if world.body == "done" else "LOST"
        yield f"the runner sends {frame}", _told(world, frame)
    if not world.is_linked:
        yield "the runner finds the link cut", world._replace(runner="over", body="none")


def _frame(read: World, frame: str, rules: Rules) -> Iterator[Step]:
    match frame, read.runner:
        case "CALL", _:
            yield "the runner lets the call wait", read._replace(runner="waiting")
            yield "the runner starts the call at once", _started(read)
        case "HANDOVER", "waiting":
            yield "the runner withdraws the call", _told(read, "WITHDRAWN")
        case "HANDOVER", "direct" if read.body == "running":
            yield "the runner records the call", read._replace(runner="recording", insert="under way")
        case "STOP", "waiting" | "direct":
            yield "the runner stops the call", read._replace(runner="over", body="none")
        case "STOP", "recording" | "ledger" if not rules.ignores_late_stop:
            yield "the runner stops the job", read._replace(runner="over", body="none")
        case _:
            yield f"the runner ignores {frame}", read


def _recording(world: World, rules: Rules) -> Iterator[Step]:
    """The row is on its way; nothing is told before it is known, but how a call ended nobody can record."""
    again = world._replace(insert="under way")
    match world.insert:
        case "committed":
            yield "the runner sends HANDED", _told(world, "HANDED", runner="ledger")
        case "fenced" if rules.tells_fenced:
            yield "the runner sends FENCED", _told(world, "FENCED")._replace(body="none")
        case "fenced":
            yield "the runner stops in silence", world._replace(runner="over", body="none")
        case "nothing" if world.body == "running":
            yield "the runner records the call again", again
        case "nothing":
            frame = "RESULT" if world.body == "done" else "LOST"
            yield f"the runner sends {frame} instead", _told(world, frame)
        case "unknown":
            yield "the runner records the call again", again
            if world.body == "done":
                yield "the runner sends RESULT unsettled", _told(world, "RESULT", runner="settling")
        case _:
            pass
    if world.is_away and world.insert in ("under way", "unknown") and world.body == "running":
        ended = _told(world, "LOST", runner="returning")._replace(body="none")
        is_late = world.is_late or world.insert == "under way"
        yield "a lease that may be there runs out", ended._replace(is_late=is_late)


def _held(world: World, rules: Rules) -> Iterator[Step]:
    if world.is_away:
        return
    over = world._replace(runner="over", body="none")
    if not _may_write(world, rules):
        yield "the runner hears that the job is another's", over
    elif world.body == "done":
        yield "the runner finishes the job", over._replace(row=_succeeded(world.row))
    elif world.body == "lost":
        yield "the runner gives the job back", over._replace(row=_requeued(world))


def _settling(world: World, rules: Rules) -> Iterator[Step]:
    over = world._replace(runner="over", body="none")
    if not rules.settles:
        yield "the runner forgets the call", over
    elif not world.is_away and _may_write(world, rules):
        row = _succeeded(world.row) if world.runner == "settling" else _requeued(world)
        yield "the runner settles the job", over._replace(row=row)
    elif not world.is_away and not world.is_late:
        yield "the runner finds nothing to settle", over


def _started(world: World) -> World:
    return world._replace(runner="direct", body="running", starts=world.starts + 1)


def _told(world: World, frame: str, runner: str = "over") -> World:
    world = world._replace(runner=runner, insert="none")
    return world._replace(to_gateway=(*world.to_gateway, frame)) if world.is_linked else world


def _is_held(world: World) -> bool:
    return world.row is not None and world.row.state == "running" and world.row.token == HELD


def _may_write(world: World, rules: Rules) -> bool:
    return _is_held(world) or (world.row is not None and not rules.names_token)


# -------------------------------------------------------------------- the ledger, and others


def _postgres(world: World) -> Iterator[Step]:
    if world.is_away:
        yield "Postgres is back", world._replace(is_away=False)
        if world.insert == "under way":
            yield "Postgres isn't reached", world._replace(insert="nothing")
        return
    if world.insert == "under way":
        written = _inserted(world)
        is_mine = written.row is not None and written.row.token == HELD
        yield "Postgres answers", written._replace(insert="committed" if is_mine else "fenced")
    if world.is_late:
        yield "a late insert arrives", _inserted(world)._replace(is_late=False)
        yield "a late insert is given up", world._replace(is_late=False)


def _inserted(world: World) -> World:
    """On conflict nothing is done."""
    if world.row is not None:
        return world
    return world._replace(row=Row("running", HELD, world.attempt + 1, world.charged + 1))


def _others(world: World) -> Iterator[Step]:
    row = world.row
    if world.is_away or row is None:
        return
    if _is_held(world) and world.runner in ("dead", "over"):
        yield "maintenance reaps the job", world._replace(row=_requeued(world))
    if row.state == "queued":
        claimed = Row("running", 10 + row.attempt, row.attempt + 1, row.charged + 1)
        yield "another runner claims the job", world._replace(row=claimed, starts=world.starts + 1)
    if row.state == "running" and row.token != HELD:
        yield "the other runner finishes", world._replace(row=_succeeded(row))


def _requeued(world: World) -> Row:
    assert world.row is not None
    state = "queued" if world.row.charged < world.attempts else "failed"
    return world.row._replace(state=state, token=0)


def _succeeded(row: Row | None) -> Row:
    assert row is not None
    return row._replace(state="succeeded")


# -------------------------------------------------------------------- faults


def _faults(world: World) -> Iterator[Step]:
    cut = world._replace(is_linked=False, to_runner=(), to_gateway=())
    is_under_way = world.insert == "under way"
    if world.runner not in ("unaware", "over", "dead"):
        dead = cut._replace(runner="dead", body="none", insert="none")
        yield "the runner dies", dead._replace(is_late=world.is_late or is_under_way)
    if world.body == "running":
        yield "the executor dies", world._replace(body="lost")
    if world.is_linked:
        yield "the link is cut", cut
    if world.gateway in ("holding", "asked"):
        yield "the gateway dies", cut._replace(gateway="dead")
    if _is_held(world) and world.runner not in ("dead", "over") and not world.is_away:
        yield "the runner is frozen past its lease", world._replace(row=_requeued(world))
    if not world.is_away:
        yield "Postgres goes away", world._replace(is_away=True)
        if is_under_way:
            unknown = world._replace(insert="unknown")
            yield "the reply of Postgres is lost", _inserted(unknown)
            yield "the insert is delayed", unknown._replace(is_late=True)
    elif is_under_way:
        yield "the insert was done as Postgres went", _inserted(world)._replace(insert="unknown")
