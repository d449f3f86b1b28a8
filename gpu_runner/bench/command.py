"""The program: from what is ordered to what is printed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec

from gpu_runner.bench.advice import advise
from gpu_runner.bench.inputs import inputs_of
from gpu_runner.bench.measuring import Measuring
from gpu_runner.bench.points import Plan
from gpu_runner.bench.rack import rack
from gpu_runner.bench.report import report
from gpu_runner.bench.results import Measured
from gpu_runner.children.executors import start_fork_server
from gpu_runner.residency.memory import CUDA_SHARE, default_budget
from headrace.cores import threads_each
from headrace.errors import HeadraceError, SetupError
from headrace.process import die_with_parent
from headrace.sdk import Function
from headrace.sdk.bytecode import heavy_imports
from headrace.sdk.discovery import discover
from headrace.settings import Settings, load_settings
from headrace.telemetry import logs

INTERRUPTED: Final = 130
"""The exit status after Ctrl-C."""


class Order(msgspec.Struct, frozen=True):
    """What is to be measured; the rest is in the settings. Empty is what is usual."""

    function: str
    seconds: float
    costs: tuple[float, ...] = ()
    executors: tuple[int, ...] = ()
    input: str = ""
    json: str = ""


def run(order: str) -> int:
    """Measure, print, and return the exit status."""
    die_with_parent()
    logs.configure_plain(sys.stderr)
    logging.getLogger("gpu_runner.children").setLevel(logging.ERROR)  # executors are ended all the time
    # What executors log and functions print isn't part of the report.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as output:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        return _reported(msgspec.json.decode(order, type=Order), output)


def _reported(order: Order, output: TextIO) -> int:
    try:
        return _run(order, output)
    except KeyboardInterrupt:  # before anything was measured
        return INTERRUPTED
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)  # noqa: T201 - the one line for the author
        return 1


def _run(order: Order, output: TextIO) -> int:
    settings = load_settings()
    function = _find(order.function, settings)
    inputs = inputs_of(function, Path(order.input) if order.input else None)
    manifest = function.manifest
    result = Measured(
        function=function.name,
        device="",
        cores=threads_each(1),
        budget=0,
        concurrency=manifest.concurrency,
        is_async=function.is_async,
        soft_s=manifest.budget.soft_limit,
        max_cost=manifest.batch.max_cost if manifest.batch else None,
    )
    context = start_fork_server(heavy_imports([function]))
    plan = Plan(order.seconds, order.costs, order.executors)
    measuring = Measuring(
        function,
        inputs,
        plan,
        result,
        lambda executors, threads: rack(function, settings, context, executors, threads),
        _teller(),
    )
    budget = settings.memory
    failure: HeadraceError | None = None
    try:
        asyncio.run(
            _until_signalled(
                measuring.run(lambda total: budget or (int(CUDA_SHARE * total) or default_budget()))
            )
        )
    except HeadraceError as error:
        failure, result.failure = error, str(error)
    if failure is not None and not result.by_cost:
        raise failure
    if result.start_s:
        _say(report(result), output)
        if order.json:
            _write(Path(order.json), result)
    if failure is not None:
        raise failure
    return 0 if result.is_whole else INTERRUPTED


def _find(name: str, settings: Settings) -> Function[Any, Any]:
    functions = discover(settings.functions)
    if name in functions:
        return functions[name]
    close = get_close_matches(name, functions, 1)
    meant = f"; did you mean {close[0]}?" if close else ""
    raise SetupError(f"there is no function {name!r}; there are {', '.join(sorted(functions))}{meant}")


async def _until_signalled(work: Any) -> None:
    """Do the work to its end, or to the first SIGINT or SIGTERM."""
    task = asyncio.create_task(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return
    except ExceptionGroup as group:
        raise group.exceptions[0] from None  # of callers at the same time: each has met it


def _teller() -> Any:
    began = time.monotonic()

    def tell(text: str) -> None:
        _say(f"{time.monotonic() - began:5.1f} s  {text}", sys.stderr)

    return tell


def _say(text: str, stream: TextIO) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(text, file=stream, flush=True)


def _write(path: Path, result: Measured) -> None:
    document = {**msgspec.to_builtins(result), "advice": advise(result)}
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    except OSError as error:
        raise SetupError(f"{path} can't be written: {error.strerror}") from None
