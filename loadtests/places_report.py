"""Figures of the runs of `places.py`, and the page that tells them."""

from __future__ import annotations

import math
import platform
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import plots
from comers import MODES, Mode, Story, codes
from first_come import Arrival, Distribution, busiest, first_come, mean, percentile
from places_site import cores

LEAST_NEXT: Final = 0.95
MOST_WAIT: Final = 1.25
MOST_RETRIES: Final = 2.5
MOST_EXPIRED: Final = 0.01

_SETTLED_S: Final = 5.0  # after which the slots should be busy all the time
_BIN_S: Final = 5.0


class Run(NamedTuple):
    """What is measured.

    Args:
        mode: what callers do who are refused.
        distribution: of the times of executions.
        gateways: how many of them.
        seed: of the arrivals and these times; the same for all modes.
    """

    mode: Mode
    distribution: Distribution
    gateways: int
    seed: str


@dataclass(frozen=True)
class Figures:
    """What came of a run.

    Args:
        calls: how many.
        refused: calls that weren't accepted at their first try.
        next_share: of these, those that were at the next.
        tries: of a call, on average.
        most_tries: of a call.
        wait_s: from a call's first try to its start, on average.
        wait: the same, in multiples of that of the same calls in the queue that refuses nobody: those that
            were never started here count in neither.
        wait_measured: in multiples of that in the same queue, where executions take as long as they did here.
        p95: 95th percentiles, as multiples.
        retries: in the busiest second, in multiples of what the slots can do.
        expired: jobs that weren't started in time.
        given_up: calls that no try was accepted of.
        lost: requests without an answer, or with one that is no refusal for want of room.
        busy: share of the slots' time in which something was executed, while the load was high.
        excess_s: by which executions were longer than they had to be, on average.
        along: of the time of the first try, the mean wait; and that of the queue that refuses nobody.
        retries_along: retries in each second, in multiples of what the slots can do.
    """

    run: Run
    calls: int
    refused: int
    next_share: float
    tries: float
    most_tries: int
    wait_s: float
    wait: float
    wait_measured: float
    p95: float
    retries: float
    expired: int
    given_up: int
    lost: int
    busy: float
    excess_s: float
    along: tuple[list[tuple[float, float]], list[tuple[float, float]]]
    retries_along: list[tuple[float, float]]


_WANT_OF_ROOM: Final = {"accepted", "backlog-full", "no-capacity"}


def figures(run: Run, stories: Sequence[Story], slots: int, capacity: float, load_s: float) -> Figures:
    """What came of a run.

    Args:
        run: which.
        stories: of its calls.
        slots: how many executions there may be at once.
        capacity: calls a second that these can do.
        load_s: how long the load was high.
    """
    simple, measured = (
        [
            wait
            for story, wait in zip(stories, first_come(calls, slots), strict=True)
            if story.wait_s is not None
        ]
        for calls in (
            [story.call for story in stories],
            [Arrival(story.call.at, story.call.seconds + story.excess_s) for story in stories],
        )
    )
    started = [story for story in stories if story.wait_s is not None]
    waits = [wait for story in started if (wait := story.wait_s) is not None]
    refused = [story for story in stories if story.tries[0].code != "accepted"]
    retries = [one.at for story in stories for one in story.tries[1:]]
    kept = [story for story in refused if len(story.tries) > 1 and story.tries[1].code == "accepted"]
    return Figures(
        run=run,
        calls=len(stories),
        refused=len(refused),
        next_share=len(kept) / len(refused) if refused else math.nan,
        tries=mean([len(story.tries) for story in stories]),
        most_tries=max(len(story.tries) for story in stories),
        wait_s=mean(waits),
        wait=_ratio(mean(waits), mean(simple)),
        wait_measured=_ratio(mean(waits), mean(measured)),
        p95=_ratio(percentile(waits, 0.95), percentile(simple, 0.95)),
        retries=busiest(retries) / capacity,
        expired=sum(story.status == "expired" for story in stories),
        given_up=sum(not story.job_id for story in stories),
        lost=sum(count for code, count in codes(stories).items() if code not in _WANT_OF_ROOM),
        busy=_busy(stories, slots, load_s),
        excess_s=mean([story.excess_s for story in started]),
        along=(
            _averaged([(story.tries[0].at, story.wait_s) for story in stories]),
            _averaged([(story.call.at, wait) for story, wait in zip(started, simple, strict=True)]),
        ),
        retries_along=_each_second(retries, capacity),
    )


def _ratio(one: float, other: float) -> float:
    return one / other if other else math.nan


def _busy(stories: Sequence[Story], slots: int, load_s: float) -> float:
    """Of the slots' time from when they should be busy until the load falls."""
    begin, end = min(_SETTLED_S, load_s / 2), load_s
    used = 0.0
    for story in stories:
        if story.started_at is not None:
            ended_at = story.started_at + story.call.seconds + story.excess_s
            used += max(0.0, min(ended_at, end) - max(story.started_at, begin))
    return used / (slots * (end - begin))


def _averaged(points: Sequence[tuple[float, float | None]]) -> list[tuple[float, float]]:
    """Means over some seconds each."""
    bins: defaultdict[int, list[float]] = defaultdict(list)
    for at, value in points:
        if value is not None:
            bins[int(at / _BIN_S)].append(value)
    return [((number + 0.5) * _BIN_S, mean(values)) for number, values in sorted(bins.items())]


def _each_second(instants: Sequence[float], capacity: float) -> list[tuple[float, float]]:
    counts = [0] * (int(max(instants, default=0)) + 1)
    for instant in instants:
        counts[int(instant)] += 1
    return [(second, count / capacity) for second, count in enumerate(counts)]


def holds(found: Sequence[Figures]) -> bool:
    """Whether what is promised to those who come with a place or a key holds."""
    return all(
        one.next_share >= LEAST_NEXT
        and one.wait <= MOST_WAIT
        and one.retries <= MOST_RETRIES
        and one.expired <= MOST_EXPIRED * one.calls
        and one.given_up + one.lost == 0
        for one in found
        if one.run.mode in ("place", "key")
    )


_COLUMNS: Final[Mapping[str, Callable[[Figures], str]]] = {
    "times": lambda one: one.run.distribution,
    "gateways": lambda one: str(one.run.gateways),
    "comes back with": lambda one: {"constant": "nothing, after 1 s", "neither": "nothing"}.get(
        one.run.mode, f"its {one.run.mode}"
    ),
    "calls": lambda one: str(one.calls),
    "refused first": lambda one: str(one.refused),
    "accepted at the next try": lambda one: f"{one.next_share:.1%}",
    "tries a call": lambda one: f"{one.tries:.2f}",
    "most tries": lambda one: str(one.most_tries),
    "mean wait, s": lambda one: f"{one.wait_s:.1f}",
    "mean wait, x": lambda one: f"{one.wait:.2f}",
    "the same, times as measured": lambda one: f"{one.wait_measured:.2f}",
    "p95 wait, x": lambda one: f"{one.p95:.2f}",
    "busiest second, x": lambda one: f"{one.retries:.2f}",
    "expired": lambda one: str(one.expired),
    "given up": lambda one: str(one.given_up),
    "lost": lambda one: str(one.lost),
    "slots busy": lambda one: f"{one.busy:.1%}",
    "excess, ms": lambda one: f"{one.excess_s * 1000:.0f}",
}


def table_head() -> str:
    """The first two lines of the table."""
    return f"| {' | '.join(_COLUMNS)} |\n|{' --- |' * len(_COLUMNS)}"


def row(one: Figures) -> str:
    """A line of the table."""
    return f"| {' | '.join(told(one) for told in _COLUMNS.values())} |"


def write_report(folder: Path, found: Sequence[Figures], seed: int, load_s: float) -> None:
    """Write the page and its plots into that folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _plot_bars(folder / "places-next-try.svg", found, "accepted at the next try, %", LEAST_NEXT, 100)
    _plot_bars(folder / "places-wait.svg", found, "mean total wait, x first-come", MOST_WAIT, 1)
    shown = max((one.run.gateways, one.run.distribution == "exponential", one.run[1:]) for one in found)[2]
    chosen = {_name(one): one for one in found if one.run[1:] == shown}
    where = f"{shown[0]}, {shown[1]} gateway{'s' * (shown[1] > 1)}"
    along = {name: one.along[0] for name, one in chosen.items()}
    plots.lines(
        folder / "places-along.svg",
        f"Total wait: {where}",
        "first try, s from the beginning",
        "s until the start",
        {"first-come queue": next(iter(chosen.values())).along[1], **along},
    )
    plots.lines(
        folder / "places-retries.svg",
        f"Retries in each second: {where}",
        "s from the beginning",
        "multiples of capacity",
        {name: one.retries_along for name, one in chosen.items() if one.run.mode != "constant"},
        levels={"the most that is promised": MOST_RETRIES},
    )
    (folder / "places.md").write_text(_page(found, seed, load_s, where))


def _name(one: Figures) -> str:
    return {"constant": "after 1 s"}.get(one.run.mode, one.run.mode)


def _plot_bars(path: Path, found: Sequence[Figures], label: str, promised: float, by: float) -> None:
    groups = list(dict.fromkeys((one.run.gateways, one.run.distribution) for one in found))
    series: dict[str, list[float]] = {}
    for mode in MODES:
        rows = {(one.run.gateways, one.run.distribution): one for one in found if one.run.mode == mode}
        if rows:
            values = [rows.get(group) for group in groups]
            of = [math.nan if one is None else one.next_share if by > 1 else one.wait for one in values]
            series[_name(next(iter(rows.values())))] = [value * by for value in of]
    names = [f"{distribution}, {gateways} gw" for gateways, distribution in groups]
    title = f"{label[0].upper()}{label[1:]}"
    plots.bars(path, title, label, names, series, levels={"promised": promised * by})


def _page(found: Sequence[Figures], seed: int, load_s: float, where: str) -> str:
    return f"""\
# Whether Retry-After is true

Written by `make bench-places`; seed {seed}, {cores()} cores, Python {platform.python_version()}.

Calls come by chance at three times what four slots can do for {load_s:g} s, and then at half of it, until all
of the former are accepted. Each is a job that sleeps for half a second on average, and may wait 10 s for its
start. Waits are from a call's first try to the start of its execution. `x`: in multiples of those of the same
calls in a queue that serves them as they come and refuses nobody; what was never started here (*expired*,
*given up*) counts in neither. *Times as measured*: where their executions
take as long in that queue as they took here, `excess` included, which tells how busy the machine was. Retries
are in multiples of what the slots can do; the busiest second may begin at any instant.

{table_head()}
{chr(10).join(row(one) for one in found)}

![Accepted at the next try](places-next-try.svg)

![Mean total wait](places-wait.svg)

{where[0].upper()}{where[1:]}:

![Total wait along the run](places-along.svg)

![Retries along the run](places-retries.svg)
"""
