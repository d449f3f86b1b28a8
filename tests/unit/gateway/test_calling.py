from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.scripted_runner import HANG_UP, SECRET, Script, ScriptedRunner, settle

from headrace.admission import Span
from headrace.domain import Budget, Cost, Limits, Manifest
from headrace.gateway import calling
from headrace.gateway.calling import Asked, Caller, ClientLeft
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.problems import Problem
from headrace.gateway.runners import RunnerLinks
from headrace.link.frames import Call, Error, Lost, Refused, Result, Service, Started, Stop

_ids = itertools.count()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "_BACKOFF_S", 0.005)


def manifest(attempts: int = 1) -> Manifest:
    return Manifest(
        name="echo",
        interface="1234",
        revision="r",
        description="",
        input_schema={},
        output_schema={},
        budget=Budget(),
        limits=Limits(),
        attempts=attempts,
        concurrency=1,
        cost=Cost(),
        pool="default",
        examples=[],
    )


async def stays() -> Any:
    """The receive of a client that waits for its answer."""
    await asyncio.Event().wait()


def asked(attempts: int = 1, hold: float = 10, total: float = 100, receive: Any = stays) -> Asked:
    return Asked(
        f"job-{next(_ids)}",
        manifest(attempts),
        b'{"text": "hello"}',
        "owner",
        "request",
        "00-trace",
        Span(hold, total),
        receive,
    )


def result(call: Call, output: bytes = b"{}") -> Result:
    return Result(call.job_id, output, call.attempt, 1.5, 2.5)


def error(call: Call, category: str = "function-failed", *, retryable: bool = False) -> Error:
    return Error(call.job_id, category, "It broke.", call.attempt, 0.0, 1.0, retryable)


def refused(call: Call, reason: str = "full", seconds: float = 1.0) -> Refused:
    return Refused(call.job_id, reason, 1, seconds)


def lost(call: Call, *, charged: bool) -> Lost:
    return Lost(call.job_id, call.attempt, charged)


def in_turn(*answers: Callable[[Call], Any]) -> Script:
    """Answers the n-th call with the n-th, and all that follow with the last."""
    turns = iter(answers)
    state = {"now": answers[0]}

    def script(call: Call) -> Any:
        state["now"] = next(turns, state["now"])
        return state["now"](call)

    return script


class Site:
    def __init__(self, caller: Caller, runners: list[ScriptedRunner], metrics: GatewayMetrics) -> None:
        self.caller = caller
        self.runners = runners
        self.metrics = metrics

    @property
    def calls(self) -> list[Call]:
        return [call for runner in self.runners for call in runner.calls]

    def restarts(self) -> float:
        return self.metrics.registry.get_sample_value("headrace_call_restarts_total") or 0.0


@asynccontextmanager
async def site(folder: Path, *scripts: Script, slots: int = 4) -> AsyncIterator[Site]:
    """A gateway's caller linked to one scripted runner for each script."""
    links, metrics = RunnerLinks(), GatewayMetrics()
    runners = [
        ScriptedRunner(f"unix:{folder}/{number}", script, [Service("echo", "1234", slots)])
        for number, script in enumerate(scripts)
    ]
    try:
        for runner in runners:
            await runner.start()
        links.update([runner.info for runner in runners], SECRET)
        async with asyncio.timeout(10):
            while links.count() < len(runners):
                assert await links.next_change(10)
        yield Site(Caller(links, metrics), runners, metrics)
    finally:
        links.close()
        for runner in runners:
            runner.stop()
        await settle()


def run(scenario: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(limited())


async def problem(caller: Caller, call: Asked) -> Problem:
    with pytest.raises(Problem) as caught:
        await caller.answer(call)
    return caught.value


# ---------------------------------------------------------------------- one start


def test_a_result_and_what_the_runner_was_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: [Started(call.job_id, 1), result(call, b'"hi"')]) as here:
            call = asked(hold=10, total=100)
            answer = await here.caller.answer(call)
            assert answer.output == b'"hi"'
            assert (call.queue_ms, call.exec_ms, call.attempt) == (1.5, 2.5, 1)
            (sent,) = here.calls
            assert (sent.job_id, sent.function, sent.interface, sent.attempt) == (
                *(call.job_id, "echo", "1234"),
                1,
            )
            assert (sent.input, sent.owner) == (b'{"text": "hello"}', "owner")
            assert (sent.request_id, sent.traceparent) == ("request", "00-trace")
            assert 99_000 < sent.remaining_ms <= 100_000
            assert 9_000 < sent.wait_ms <= 10_000
            assert here.restarts() == 0

    run(scenario)


@pytest.mark.parametrize(
    ("category", "code"),
    [
        ("function-failed", "function-failed"),
        ("invalid-output", "invalid-output"),
        ("soft-limit-exceeded", "soft-limit-exceeded"),
        ("hard-limit-exceeded", "hard-limit-exceeded"),
        ("deadline-exceeded", "deadline-exceeded"),
        ("a-category-of-a-later-runner", "function-failed"),
    ],
)
def test_a_failure_is_a_problem_and_not_tried_again(tmp_path: Path, category: str, code: str) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: error(call, category)) as here:
            found = await problem(here.caller, asked(attempts=3))
            assert (found.code, found.detail, found.extra["attempt"]) == (code, "It broke.", 1)
            assert len(here.calls) == 1

    run(scenario)


def test_an_invalid_input_says_where(tmp_path: Path) -> None:
    async def scenario() -> None:
        def script(call: Call) -> Error:
            return Error(
                call.job_id, "invalid-input", "odd", 1, 0.0, 0.0, errors=(("/number", "odd"), ("", "wrong"))
            )

        async with site(tmp_path, script) as here:
            found = await problem(here.caller, asked(attempts=3))
            assert (found.code, found.status) == ("invalid-input", 422)
            assert found.extra["errors"] == [
                {"path": "/number", "message": "odd"},
                {"path": "", "message": "wrong"},
            ]

    run(scenario)


# ---------------------------------------------------------------------- starting again


def test_a_retryable_failure_runs_again_as_often_as_allowed(tmp_path: Path) -> None:
    async def scenario() -> None:
        script = in_turn(
            lambda call: error(call, "transient", retryable=True),
            lambda call: error(call, "out-of-memory", retryable=True),
            result,
        )
        async with site(tmp_path, script) as here:
            call = asked(attempts=3)
            await here.caller.answer(call)
            assert [sent.attempt for sent in here.calls] == [1, 2, 3]
            assert {sent.job_id for sent in here.calls} == {call.job_id}
            assert here.restarts() == 2

    run(scenario)


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_a_failure_that_stays_exhausts_its_attempts(tmp_path: Path, attempts: int) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: error(call, "transient", retryable=True)) as here:
            found = await problem(here.caller, asked(attempts=attempts))
            assert (found.code, found.extra["attempt"]) == ("attempts-exhausted", attempts)
            assert [sent.attempt for sent in here.calls] == list(range(1, attempts + 1))

    run(scenario)


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_a_start_that_is_charged_counts(tmp_path: Path, attempts: int) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: lost(call, charged=True)) as here:
            found = await problem(here.caller, asked(attempts=attempts))
            assert (found.code, found.status) == ("worker-lost", 502)
            assert len(here.calls) == attempts

    run(scenario)


def test_starts_lost_through_no_fault_of_the_call_are_free_three_times(tmp_path: Path) -> None:
    async def scenario() -> None:
        free = [lambda call: lost(call, charged=False)] * 3
        async with site(tmp_path, in_turn(*free, result)) as here:
            await here.caller.answer(asked(attempts=1))
            assert [sent.attempt for sent in here.calls] == [1, 2, 3, 4]
        async with site(tmp_path, in_turn(*free, free[0], result)) as here:
            assert (await problem(here.caller, asked(attempts=1))).code == "worker-lost"
            assert len(here.calls) == 4

    run(scenario)


@pytest.mark.parametrize("attempts", [1, 2, 4])
def test_executions_never_exceed_the_attempts_and_three(tmp_path: Path, attempts: int) -> None:
    """Whatever mixture of losses and passing failures there is."""
    kinds = [
        lambda call: lost(call, charged=True),
        lambda call: lost(call, charged=False),
        lambda call: error(call, "transient", retryable=True),
    ]

    async def scenario() -> None:
        worst = 0
        async with site(tmp_path, result) as here:
            for pattern in itertools.product(kinds, repeat=5):
                here.runners[0].calls.clear()
                here.runners[0].script = in_turn(*itertools.islice(itertools.cycle(pattern), 20))
                await problem(here.caller, asked(attempts=attempts))
                starts = [sent.attempt for sent in here.calls]
                assert starts == list(range(1, len(starts) + 1))  # numbered, never reused
                worst = max(worst, len(starts))
        assert worst == attempts + 3  # reached, never passed

    run(scenario)


def test_a_lost_link_counts_as_a_start_and_the_call_goes_to_another_runner(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: HANG_UP, lambda call: HANG_UP) as here:
            by_turn = in_turn(lambda call: HANG_UP, result)
            for runner in here.runners:
                runner.script = by_turn
            call = asked(attempts=2)
            await here.caller.answer(call)
            assert sorted(sent.attempt for sent in here.calls) == [1, 2]
            assert (call.charged, call.uncharged) == (1, 0)

    run(scenario)


def test_a_call_waits_for_the_only_runner_to_come_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, in_turn(lambda call: HANG_UP, result)) as here:
            await here.caller.answer(asked(attempts=2))
            assert len(here.calls) == 2

    run(scenario)


def test_a_call_whose_runner_does_not_come_back_ends_with_its_hold(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: None) as here:

            def vanish(call: Call) -> None:
                here.runners[0].stop()

            here.runners[0].script = vanish
            found = await problem(here.caller, asked(attempts=2, hold=0.2))
            assert (found.code, found.extra["attempt"]) == ("worker-lost", 2)
            assert len(here.calls) == 1

    run(scenario)


def test_a_call_that_has_to_start_again_waits_for_room(tmp_path: Path) -> None:
    async def scenario() -> None:
        script = in_turn(
            lambda call: lost(call, charged=True),
            lambda call: refused(call, seconds=0.01),
            lambda call: refused(call, seconds=0.01),
            result,
        )
        async with site(tmp_path, script) as here:
            await here.caller.answer(asked(attempts=2))
            assert [sent.attempt for sent in here.calls] == [1, 2, 2, 2]  # a refusal is no start

    run(scenario)


# ---------------------------------------------------------------------- refusals


def test_every_runner_is_asked_before_a_refusal(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(
            tmp_path,
            lambda call: refused(call, seconds=7.2),
            lambda call: refused(call, seconds=2.1),
            lambda call: refused(call, "draining", 9.0),
        ) as here:
            found = await problem(here.caller, asked(attempts=2))
            assert (found.code, found.headers["Retry-After"]) == ("busy", "3")  # the one that ends first
            assert [len(runner.calls) for runner in here.runners] == [1, 1, 1]
            here.runners[1].script = result
            await here.caller.answer(asked())

    run(scenario)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("full", "busy"),
        ("cold", "busy"),
        ("degraded", "function-degraded"),
        ("draining", "no-runner"),
        ("unknown-interface", "no-runner"),
        ("a-reason-of-a-later-runner", "no-runner"),
    ],
)
def test_the_reason_of_a_refusal_becomes_a_503(tmp_path: Path, reason: str, code: str) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: refused(call, reason, 4.0)) as here:
            found = await problem(here.caller, asked())
            assert (found.code, found.status, found.headers["Retry-After"]) == (code, 503, "4")

    run(scenario)


def test_without_a_runner_the_answer_comes_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path) as here:
            found = await problem(here.caller, asked(hold=1000))
            assert (found.code, found.status) == ("no-runner", 503)
            assert int(found.headers["Retry-After"]) >= 1

    run(scenario)


def test_another_interface_is_not_called(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, result) as here:
            call = asked()
            call.manifest = manifest()
            call.manifest = Manifest(**{**_fields(call.manifest), "interface": "5678"})
            assert (await problem(here.caller, call)).code == "no-runner"
            assert here.calls == []

    run(scenario)


def _fields(of: Manifest) -> dict[str, Any]:
    return {name: getattr(of, name) for name in of.__struct_fields__}


# ---------------------------------------------------------------------- time, and clients that leave


def test_the_end_of_the_hold_stops_the_work(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: Started(call.job_id, 1)) as here:
            call = asked(hold=0.15, total=100)
            found = await problem(here.caller, call)
            assert (found.code, found.status) == ("hold-exceeded", 504)
            assert "0.15 s" in found.detail
            assert (await here.runners[0].hears(Stop)).job_id == call.job_id

    run(scenario)


def test_the_deadline_is_told_from_the_hold(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: None) as here:
            found = await problem(here.caller, asked(hold=0.05, total=0.05))
            assert (found.code, found.status) == ("deadline-exceeded", 504)

    run(scenario)


def test_a_client_that_leaves_stops_the_work(tmp_path: Path) -> None:
    async def scenario() -> None:
        gone = asyncio.Event()

        async def receive() -> Any:
            await gone.wait()
            return {"type": "http.disconnect"}

        async with site(tmp_path, lambda call: Started(call.job_id, 1)) as here:
            call = asked(hold=1000, receive=receive)
            answering = asyncio.ensure_future(here.caller.answer(call))
            await here.runners[0].hears(Call)
            gone.set()
            with pytest.raises(ClientLeft):
                await answering
            assert (await here.runners[0].hears(Stop)).job_id == call.job_id

    run(scenario)


def test_an_answer_that_comes_after_a_while_still_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        watched = asyncio.Event()

        async def receive() -> Any:
            watched.set()
            await asyncio.Event().wait()

        async with site(tmp_path, lambda call: None) as here:
            answering = asyncio.ensure_future(here.caller.answer(asked(hold=1000, receive=receive)))
            call = await here.runners[0].hears(Call)
            await watched.wait()  # it is long enough for somebody to look whether the client is there
            here.runners[0].say(result(call, b"1"))
            assert (await answering).output == b"1"

    run(scenario)


def test_a_cancelled_request_stops_the_work(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: None) as here:
            answering = asyncio.ensure_future(here.caller.answer(asked()))
            call = await here.runners[0].hears(Call)
            answering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await answering
            assert (await here.runners[0].hears(Stop)).job_id == call.job_id

    run(scenario)


def test_the_clock_is_not_started_anew_by_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: None) as here:
            call = asked(attempts=2, hold=0.4, total=100)
            began = asyncio.get_running_loop().time()
            answering = asyncio.ensure_future(problem(here.caller, call))
            first = await here.runners[0].hears(Call)
            await asyncio.sleep(0.2)
            here.runners[0].say(lost(first, charged=True))
            second = await here.runners[0].hears(Call)
            assert second.remaining_ms <= first.remaining_ms - 200
            assert second.wait_ms <= first.wait_ms - 200
            assert (await answering).code == "hold-exceeded"
            assert asyncio.get_running_loop().time() - began < 0.8

    run(scenario)
