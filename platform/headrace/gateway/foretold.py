"""What was foretold of a call, beside what came: for its access line, and counted."""

from __future__ import annotations

from typing import Any

from headrace.gateway.asked import Asked
from headrace.gateway.exchange import Exchange
from headrace.gateway.job_asked import JobCall
from headrace.gateway.predictions import Forecast, of_call, of_job


def settle(exchange: Exchange, brief_wait: float) -> dict[str, Any]:
    """Count how true the prediction for a call was that has been answered.

    Args:
        exchange: the call's.
        brief_wait: how long it may wait for a slot on the direct path, in seconds.

    Returns:
        The members that its access line gets for it.
    """
    course = exchange.course
    if isinstance(course, JobCall):
        return _of_job(exchange, course)
    if isinstance(course, Asked) and course.predicted is not None:
        return _of_call(exchange, course, of_call(course.predicted, brief_wait))
    return {}


def _of_call(exchange: Exchange, asked: Asked, forecast: Forecast) -> dict[str, Any]:
    """Of one that a runner got: what its first start took, or how long it has run at least."""
    if asked.attempt == 1:
        kept = exchange.metrics.predictions
        if exchange.status == 200 and not exchange.code:
            kept.waited(forecast, "direct", asked.queue_ms / 1000)
            kept.ran(forecast, asked.exec_ms / 1000)
        elif asked.is_handed_over and exchange.status == 202:
            kept.outlasted(forecast, asked.span.hold - asked.queue_ms / 1000)
    return forecast.told()


def _of_job(exchange: Exchange, call: JobCall) -> dict[str, Any]:
    """Of one that became a job: its wait if it has started by now, and its execution if that has ended.

    One that hasn't started counts where it has waited so long already that the prediction is off. One that
    had its first start as a direct call doesn't: the ledger predicted the wait for another start.
    """
    receipt = call.receipt
    if receipt is None or receipt.outcome != "accepted":
        return {"place": call.place}
    forecast = of_job(call.predicted, receipt.wait_s)
    kept = exchange.metrics.predictions
    if call.new.attempt == call.attempt == 0:
        kept.waits_on(forecast, "job", call.unstarted_s)
    elif call.new.attempt == 0 and call.attempt == 1:
        kept.waited(forecast, "job", call.queue_ms / 1000)
        if call.exec_ms and not exchange.code:
            kept.ran(forecast, call.exec_ms / 1000)
    return {**forecast.told(), "place": call.place}
