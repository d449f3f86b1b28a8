"""Whatever runners answer, in whatever order: a call gets one outcome, and its starts are counted rightly."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest
from harness.scripted_calls import Site, error, flexible, lost, refused, result, run, site
from harness.scripted_runner import HANG_UP
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gateway import calling, runners
from headrace.gateway.asked import Handed, ToJob
from headrace.gateway.problems import Problem
from headrace.link import frames
from headrace.link.frames import Call, Fenced, Handover, Lost, Result, Started

HOLD = 0.06
Answer = Literal[
    "result", "runs", "full", "cold", "degraded", "lost", "displaced", "passing", "failed", "hangs up"
]
Late = Literal["result", "handed", "withdrawn", "fenced", "full", "lost", "displaced", "passing", "hangs up"]
_CHARGED = {"lost", "passing", "hangs up"}
_UNCHARGED = {"displaced"}


@dataclass
class Runner:
    """Says what it is told to, call by call, and notes what it was asked."""

    answers: list[Answer]
    late: Late
    said: list[str] = field(default_factory=list[str])
    handovers: list[Handover] = field(default_factory=list[Handover])
    faults: list[str] = field(default_factory=list[str])

    def check(self, what: str, *, holds: bool) -> None:
        """Note a fault: what is raised where frames are read only ends the link."""
        if not holds:
            self.faults.append(what)

    def script(self, call: Call) -> Any:
        self.check("sent again though it may be recorded", holds=not self.handovers)
        starts = sum(word in _CHARGED | _UNCHARGED for word in self.said)
        self.check("a start's number", holds=call.attempt == starts + 1)
        word = self.answers.pop(0) if self.answers else "runs"
        self.said.append(word)
        return _words(call)[word]

    def record(self, frame: Handover) -> Any:
        self.handovers.append(frame)
        if self.said[-1] != "runs":
            return None  # its answer is on its way
        charged = sum(word in _CHARGED for word in self.said)
        self.check("the charged starts of a handover", holds=frame.charged == charged)
        self.said.append(self.late)
        if self.late == "displaced":
            return Lost(frame.job_id, 1, charged=False, suspect=False)
        if self.late == "lost":
            return Lost(frame.job_id, 1, charged=True)
        return {
            "result": result(frame),
            "handed": frames.Handed(frame.job_id),
            "withdrawn": frames.Handed(frame.job_id, withdrawn=True),
            "fenced": Fenced(frame.job_id),
            "full": frames.Refused(frame.job_id, "full"),
            "passing": frames.Error(frame.job_id, "transient", "", 1, 0.0, 0.0, retryable=True),
            "hangs up": HANG_UP,
        }[self.late]


def _words(call: Call) -> dict[Answer, Any]:
    return {
        "result": result(call),
        "runs": Started(call.job_id, call.attempt),
        "full": refused(call, seconds=0.01),
        "cold": refused(call, "cold", 0.01),
        "degraded": refused(call, "degraded", 0.01),
        "lost": lost(call, charged=True),
        "displaced": lost(call, charged=False, suspect=False),
        "passing": error(call, "transient", retryable=True),
        "failed": error(call),
        "hangs up": HANG_UP,
    }


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "_BACKOFF_S", 0.001)
    monkeypatch.setattr(runners, "_SHORTEST_PAUSE_S", 0.001)


@settings(max_examples=80, deadline=None)
@given(
    answers=st.lists(st.sampled_from(Answer.__args__), max_size=6),
    late=st.sampled_from(Late.__args__),
    attempts=st.integers(1, 3),
    is_recorded=st.booleans(),
    is_away=st.booleans(),
)
def test_a_call_has_one_outcome_and_every_start_is_told(
    answers: list[Answer], late: Late, attempts: int, is_recorded: bool, is_away: bool
) -> None:
    runner = Runner(list(answers), late)

    async def recorded(job_id: str, owner_id: str) -> bool:
        runner.check("the ledger was asked in vain", holds=bool(runner.handovers))
        return is_recorded

    async def scenario() -> None:
        away = 60.0 if is_away else 0.0
        with TemporaryDirectory() as folder:
            async with site(
                Path(folder), runner.script, on_handover=runner.record, away=lambda: away, recorded=recorded
            ) as here:
                outcome: Any = None
                try:
                    outcome = await here.caller.answer(flexible(attempts, HOLD))
                except Problem as problem:
                    outcome = problem
                assert not runner.faults
                check(runner, outcome, attempts, is_away=is_away)
                check_counted(here, runner, outcome)

    run(scenario)


def check(runner: Runner, outcome: Any, attempts: int, *, is_away: bool) -> None:
    """Check an outcome by what the runner has said."""
    said, last = runner.said, runner.said[-1] if runner.said else ""
    charged = sum(word in _CHARGED for word in said)
    uncharged = sum(word in _UNCHARGED for word in said)
    assert len(runner.handovers) <= 1
    assert charged <= attempts
    assert uncharged <= 4
    match outcome:
        case Result():
            assert last == "result"
        case Handed():
            assert runner.handovers
            assert last in {"handed", "fenced"} or (
                last in {"lost", "displaced", "hangs up"} and (charged == attempts or uncharged == 4)
            )
        case ToJob():
            assert (outcome.attempt, outcome.charged) == (charged + uncharged, charged)
            assert charged < attempts
            assert uncharged <= 3
            assert runner.handovers or not is_away
            assert outcome.alone == (last_loss(said) == "lost")
        case Problem(code="worker-lost"):
            assert charged + uncharged > 0
            assert charged == attempts or uncharged == 4 or is_away
        case Problem(code="attempts-exhausted"):
            assert last == "passing"
            assert charged == attempts
        case Problem():
            expected = {"failed": "function-failed", "degraded": "function-degraded"}
            assert outcome.code in {expected.get(last, ""), "busy" if is_away else "", "hold-exceeded"}
        case _:
            raise AssertionError(outcome)


def last_loss(said: list[str]) -> str:
    """The next start is alone after a process that was lost, until another has lived to tell."""
    return next((word for word in reversed(said) if word in {"lost", "passing"}), "")


def check_counted(here: Site, runner: Runner, outcome: Any) -> None:
    became = [
        sample.value
        for family in here.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "headrace_calls_became_jobs_total"
    ]
    assert sum(became) == isinstance(outcome, Handed)  # any other is counted once it is accepted
    assert here.counted("headrace_handovers_pending") == 0
    ends = sum(
        sample.value
        for family in here.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "headrace_handovers_total"
    )
    assert ends == len(runner.handovers)
