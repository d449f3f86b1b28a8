"""`headrace bench`."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NoReturn

import click
from rich_click import RichCommand

from headrace.cli._duration import Duration


class _Numbers(click.ParamType[tuple[float, ...]]):
    """Positive numbers with commas between them."""

    name = "numbers"

    def __init__(self, kind: type[int] | type[float], most: float) -> None:
        self._kind = kind
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            found = tuple(self._kind(part) for part in value.split(","))
        except ValueError:
            found = ()
        if not found or not all(0 < number <= self._most for number in found):
            what = "whole numbers" if self._kind is int else "numbers"
            self.fail(f"{value!r} isn't {what} over 0 up to {self._most:g}, as 1,2,4", param, ctx)
        return found


@click.command(cls=RichCommand)
@click.argument("function")
@click.option("--functions", metavar="MODULES", help="Modules to look in, instead of HEADRACE_FUNCTIONS.")
@click.option("--device", help="auto, cpu, cuda or cuda:N, instead of HEADRACE_DEVICE.")
@click.option(
    "--executors",
    type=_Numbers(int, 64),
    default=None,
    metavar="N,N",
    help="How many executors to try [default: 1, 2, 4 up to the cores].",
)
@click.option(
    "--costs",
    type=_Numbers(float, 1e15),
    default=None,
    metavar="C,C",
    help="Costs of single calls to try [default: the first input's, doubled again and again].",
)
@click.option(
    "--seconds",
    type=Duration(),
    default="2s",
    metavar="TIME",
    help="How long each point takes [default: 2s].",
)
@click.option(
    "--input",
    "input_file",
    metavar="FILE",
    help="Inputs, as JSON or one a line, instead of the function's examples.",
)
@click.option("--json", "json_file", metavar="FILE", help="Write all figures to this file, too.")
def bench(
    function: str,
    functions: str | None,
    device: str | None,
    executors: tuple[int, ...] | None,
    costs: tuple[float, ...] | None,
    seconds: float,
    input_file: str | None,
    json_file: str | None,
) -> NoReturn:
    """Measure FUNCTION on this machine, and say how to serve it: executors, concurrency, size of batches.

    It runs in executors as a runner's, without a gateway and Postgres. Ctrl-C ends it with what there is.
    """
    from headrace.settings import load_settings  # noqa: PLC0415 - slow to load
    from headrace.site import runner_environment  # noqa: PLC0415

    if not seconds:
        raise click.UsageError("--seconds must be over 0")
    settings = load_settings(functions=functions, device=device)
    environment = runner_environment(settings)
    # Each number of executors that is tried has threads of its own.
    if "OMP_NUM_THREADS" not in os.environ:
        environment.pop("OMP_NUM_THREADS", None)
    os.environ.clear()
    os.environ.update(environment)
    order = {
        "function": function,
        "seconds": seconds,
        "costs": costs or (),
        "executors": executors or (),
        "input": input_file or "",
        "json": json_file or "",
    }
    os.execv(sys.executable, [sys.executable, "-m", "gpu_runner.bench", json.dumps(order)])  # noqa: S606 - the program is this one
