"""A direct call that becomes a job while it runs: what is recorded, and what its gateway is told."""

from __future__ import annotations

import asyncio

import pytest
from handover_bench import DIGEST, Clock, hand_over, run
from job_bench import JobBench
from lot_bench import answer, end, running
from rig import Gateway

from gpu_runner.frames import Failed, Reported
from headrace.link.frames import Call, Handed, Result

# ---------------------------------------------------------------------- when nothing fails


def test_a_running_call_becomes_a_job_and_goes_on() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        (executor,) = bench.executors
        job_id = bench.gateway.send("many", text="a")
        hand_over(bench, job_id, key_id="key", cost=2.0, weight=0.5, queue_s=9.0, charged=0)
        assert bench.told(job_id) is None  # not before it is there
        await bench.settled()
        assert bench.told(job_id) == Handed(job_id)
        ((_, (recorded,)),) = bench.ledger.handovers
        assert (recorded.job_id, recorded.owner_id, recorded.function) == (job_id, "o", "many")
        assert (recorded.key_id, recorded.cost, recorded.weight, recorded.queue_s) == ("key", 2.0, 0.5, 9.0)
        assert (recorded.attempt, recorded.charged, recorded.digest) == (1, 1, DIGEST)
        assert recorded.input == b'{"text":"a"}'
        assert 99 < recorded.remaining_s <= 100
        assert 0 <= recorded.waited_s < 1
        assert 0 <= recorded.elapsed_s < 1
        held = [name for name, _ in bench.held.named()]
        assert [(one.job_id, one.token, one.attempt) for one in held] == [(job_id, recorded.token, 1)]
        executor.finish(job_id)
        await bench.settled()
        assert bench.ledger.rows[job_id].state == "succeeded"
        assert bench.ledger.outcomes[job_id].output == b"{}"
        assert executor.runs == [job_id]
        assert executor.stops == []
        assert bench.held.named() == []
        assert bench.count("headrace_runner_handovers_total", function="many", outcome="recorded") == 1

    run(scenario)


def test_earlier_starts_and_the_wait_before_them_are_told() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        manifest = bench.supervisor._functions["many"].manifest
        frame = Call("again", "many", manifest.interface, b"{}", "o", 3, 50_000, 10_000)
        bench.gateway.answers["again"] = asyncio.get_running_loop().create_future()
        bench.supervisor.take(frame, bench.gateway)
        hand_over(bench, "again", charged=manifest.attempts - 1, accepted_ms=20_000.0)
        await bench.settled()
        ((_, (recorded,)),) = bench.ledger.handovers
        assert (recorded.attempt, recorded.charged) == (3, manifest.attempts)
        assert 19 < recorded.waited_s <= 20
        bench.executors[0].finish("again")

    run(scenario)


def test_a_call_that_has_ended_is_answered_and_not_recorded() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        job_id = bench.gateway.send("many")
        bench.executors[0].finish(job_id)
        hand_over(bench, job_id)
        hand_over(bench, "never-seen")
        await bench.settled()
        assert isinstance(bench.told(job_id), Result)
        assert bench.ledger.handovers == []

    run(scenario)


def test_what_ends_before_its_transaction_begins_is_answered_and_not_recorded() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        bench.ledger.open["hand_over"].clear()
        first, second, third = (bench.gateway.send("many") for _ in range(3))
        hand_over(bench, first)
        await bench.settled()
        hand_over(bench, second)
        hand_over(bench, third)
        bench.executors[0].finish(second)
        assert isinstance(bench.told(second), Result)
        bench.ledger.open["hand_over"].set()
        await bench.settled()
        assert [[one.job_id for one in calls] for _, calls in bench.ledger.handovers] == [[first], [third]]
        assert second not in bench.ledger.rows
        for job_id in (first, third):
            bench.executors[0].finish(job_id)

    run(scenario)


def test_those_that_come_while_one_transaction_is_on_its_way_make_the_next() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        bench.ledger.open["hand_over"].clear()
        calls = [bench.gateway.send("together") for _ in range(4)]
        for job_id in calls:
            hand_over(bench, job_id)
            await bench.settled()
        assert len(bench.ledger.handovers) == 1
        bench.ledger.open["hand_over"].set()
        await bench.settled()
        assert [[one.job_id for one in some] for _, some in bench.ledger.handovers] == [calls[:1], calls[1:]]
        assert [bench.told(job_id) for job_id in calls] == [Handed(job_id) for job_id in calls]
        for job_id in calls:
            bench.executors[0].finish(job_id)

    run(scenario)


def test_a_large_input_goes_alone() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        bench.ledger.open["hand_over"].clear()
        texts = ["", "x" * 2**20, "", ""]
        calls = [bench.gateway.send("together", text=text) for text in texts]
        for job_id in calls:
            hand_over(bench, job_id)
        bench.ledger.open["hand_over"].set()
        await bench.settled()
        sizes = [[one.job_id for one in some] for _, some in bench.ledger.handovers]
        assert sizes == [calls[:1], calls[1:2], calls[2:]]
        for job_id in calls:
            bench.executors[0].finish(job_id)

    run(scenario)


def test_done_while_it_is_recorded_the_ledger_has_the_result() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        bench.ledger.open["reply"].clear()
        job_id = bench.gateway.send("many")
        hand_over(bench, job_id)
        await bench.settled()
        bench.executors[0].finish(job_id)
        await bench.settled()
        assert bench.told(job_id) is None
        bench.ledger.open["reply"].set()
        await bench.settled()
        assert bench.told(job_id) == Handed(job_id)
        assert bench.ledger.rows[job_id].state == "succeeded"

    run(scenario)


@pytest.mark.parametrize("retryable", [False, True])
def test_a_failure_is_the_jobs(*, retryable: bool) -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        job_id = bench.gateway.send("many")
        hand_over(bench, job_id)
        await bench.settled()
        bench.executors[0].say(Failed(job_id, "function-failed", "No.", 0.1, retryable=retryable))
        await bench.settled()
        assert bench.ledger.outcomes[job_id].kind == ("retry" if retryable else "failed")
        assert bench.told(job_id) == Handed(job_id)

    run(scenario)


def test_progress_meanwhile_and_afterwards_is_the_jobs() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        bench.ledger.open["hand_over"].clear()
        job_id = bench.gateway.send("many")
        bench.executors[0].say(Reported(job_id, 0.1, "nobody follows a direct call"))
        hand_over(bench, job_id)
        await bench.settled()
        bench.executors[0].say(Reported(job_id, 0.5, "half"))
        bench.ledger.open["hand_over"].set()
        await bench.ledger.until(lambda: bench.ledger.reports)
        assert [(one.job_id, one.fraction) for one in bench.ledger.reports[0]] == [(job_id, 0.5)]
        bench.executors[0].finish(job_id)

    run(scenario)


def test_a_joined_call_that_runs_is_recorded_by_itself() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        (executor,) = bench.executors
        one = bench.gateway.send("join", text="a")
        (lot,) = running(executor)
        hand_over(bench, one)
        await bench.settled()
        assert bench.told(one) == Handed(one)
        answer(executor, one)
        await bench.settled()
        assert bench.ledger.rows[one].state == "succeeded"
        end(executor, lot)

    run(scenario, modules=("executor_functions", "joined_functions"))


# ---------------------------------------------------------------------- what hasn't started


@pytest.mark.parametrize("function", ["echo", "join"])
def test_what_waits_is_withdrawn(function: str) -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        (executor,) = bench.executors
        busy = bench.gateway.send("echo")
        waiting = bench.gateway.send(function, text="a")
        assert bench.load("echo")
        hand_over(bench, waiting)
        assert bench.told(waiting) == Handed(waiting, withdrawn=True)
        assert bench.supervisor.call_of(waiting) is None
        executor.finish(busy)
        await bench.settled()
        assert executor.runs == [busy]
        assert not executor.calls
        assert bench.ledger.handovers == []
        assert bench.count("headrace_runner_handovers_total", function=function, outcome="withdrawn") == 1

    run(scenario, modules=("executor_functions", "joined_functions"))


def test_what_is_to_run_alone_and_waits_is_withdrawn() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        busy = bench.gateway.send("many")
        waiting = bench.gateway.send("many", alone=True)
        hand_over(bench, waiting)
        assert bench.told(waiting) == Handed(waiting, withdrawn=True)
        bench.executors[0].finish(busy)
        assert not bench.executors[0].calls

    run(scenario)


def _handed_ahead(bench: JobBench) -> tuple[str, str]:
    """A call that runs, and one that its executor has behind it."""
    (executor,) = bench.executors
    for _ in range(3):  # known to be short
        executor.finish(bench.gateway.send("echo"), 0.0001)
    first, second = bench.gateway.send("echo"), bench.gateway.send("echo")
    assert len(executor.ahead) == 1
    return first, second


def test_what_was_handed_ahead_is_recorded_and_starts_as_it_would() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        (executor,) = bench.executors
        first, second = _handed_ahead(bench)
        hand_over(bench, second)
        await bench.settled()
        assert bench.told(second) == Handed(second)
        ((_, (recorded,)),) = bench.ledger.handovers
        assert recorded.elapsed_s == 0
        executor.finish(first)
        executor.finish(second)
        await bench.settled()
        assert bench.ledger.rows[second].state == "succeeded"

    run(scenario)


@pytest.mark.parametrize("is_recorded", [False, True])
def test_what_was_handed_ahead_and_lost_there_is_given_back_uncharged(*, is_recorded: bool) -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        (executor,) = bench.executors
        _, second = _handed_ahead(bench)
        if not is_recorded:
            bench.ledger.open["hand_over"].clear()
        hand_over(bench, second)
        await bench.settled()
        executor.lose()
        executor.become_ready()
        bench.ledger.open["hand_over"].set()
        await bench.settled()
        assert bench.told(second) == Handed(second)
        assert bench.ledger.outcomes[second].kind == "returned"
        assert bench.supervisor.call_of(second) is None

    run(scenario)


# ---------------------------------------------------------------------- executors, gateways, owners


@pytest.mark.parametrize("is_recorded", [False, True])
def test_an_executor_lost_under_it_gives_the_job_back_charged(*, is_recorded: bool) -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        if not is_recorded:
            bench.ledger.open["hand_over"].clear()
        job_id = bench.gateway.send("many")
        hand_over(bench, job_id)
        await bench.settled()
        bench.executors[0].lose()
        bench.ledger.open["hand_over"].set()
        await bench.settled()
        assert bench.told(job_id) == Handed(job_id)
        assert bench.ledger.outcomes[job_id].kind == "lost"
        assert bench.ledger.rows[job_id].state == "queued"

    run(scenario)


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("how", ["stop", "link"])
def test_its_gateway_cant_stop_it_any_more(how: str, *, is_recorded: bool) -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        (executor,) = bench.executors
        if not is_recorded:
            bench.ledger.open["hand_over"].clear()
        recorded, direct = bench.gateway.send("many"), bench.gateway.send("many")
        hand_over(bench, recorded)
        await bench.settled()
        if how == "stop":
            bench.gateway.stop(recorded)
            bench.gateway.stop(direct)
        else:
            bench.supervisor.caller_lost(bench.gateway)
        assert executor.stops == [direct]
        hand_over(bench, direct)  # a stopped call isn't recorded
        bench.ledger.open["hand_over"].set()
        await bench.settled()
        executor.finish(recorded)
        executor.finish(direct)
        await bench.settled()
        assert bench.ledger.rows[recorded].state == "succeeded"
        assert direct not in bench.ledger.rows

    run(scenario)


def test_only_who_brought_a_call_hands_it_over_and_only_once() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        job_id = bench.gateway.send("many")
        hand_over(bench, job_id, Gateway(bench.supervisor))
        await bench.settled()
        assert bench.ledger.handovers == []
        hand_over(bench, job_id)
        hand_over(bench, job_id)
        await bench.settled()
        hand_over(bench, job_id)
        await bench.settled()
        assert len(bench.ledger.handovers) == 1
        bench.executors[0].finish(job_id)

    run(scenario)


def test_a_call_whose_items_are_sent_stays_direct() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        interface = bench.supervisor._functions["many"].manifest.interface
        bench.gateway.answers["stream"] = asyncio.get_running_loop().create_future()
        frame = Call("stream", "many", interface, b"{}", "o", 1, 50_000, 10_000, credit=5)
        bench.supervisor.take(frame, bench.gateway)
        hand_over(bench, "stream")
        await bench.settled()
        assert bench.ledger.handovers == []
        bench.executors[0].finish("stream")
        assert isinstance(bench.told("stream"), Result)

    run(scenario)


def test_a_runner_without_a_ledger_answers_as_ever() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        bench.supervisor.on_handover = None
        job_id = bench.gateway.send("many")
        hand_over(bench, job_id)
        bench.executors[0].finish(job_id)
        assert isinstance(bench.told(job_id), Result)

    run(scenario)
