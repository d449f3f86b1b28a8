"""`headrace runner`."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click
from rich_click import RichCommand


@click.command(cls=RichCommand)
@click.option("--functions", metavar="MODULES", help="Modules to serve, instead of HEADRACE_FUNCTIONS.")
@click.option("--device", help="auto, cpu, cuda or cuda:N, instead of HEADRACE_DEVICE.")
@click.option("--advertise", metavar="ADDRESS", help="tcp://host:port or unix:/path where gateways dial it.")
@click.option(
    "--pool", metavar="NAME", help="The pool that it serves, instead of HEADRACE_POOL (default); * for all."
)
@click.option(
    "--label",
    "labels",
    metavar="K=V",
    multiple=True,
    help="A label that it has, instead of HEADRACE_LABELS; may be repeated.",
)
@click.option(
    "--executors", type=int, help="How many executor processes, 1 to 64, instead of HEADRACE_EXECUTORS."
)
@click.option(
    "--drain-seconds",
    metavar="S",
    type=float,
    help="How long calls may run on when it ends, instead of HEADRACE_DRAIN_SECONDS.",
)
def runner(
    functions: str | None,
    device: str | None,
    advertise: str | None,
    pool: str | None,
    labels: tuple[str, ...],
    executors: int | None,
    drain_seconds: float | None,
) -> NoReturn:
    """Load models and serve functions until SIGTERM; modules in the current folder are found first."""
    from headrace.settings import load_settings  # noqa: PLC0415 - slow to load
    from headrace.site import runner_environment  # noqa: PLC0415

    settings = load_settings(
        functions=functions,
        device=device,
        runner_advertise=advertise,
        pool=pool,
        labels=",".join(labels) or None,
        executors=executors,
        drain_seconds=drain_seconds,
    )
    os.environ.update(runner_environment(settings))
    os.execv(sys.executable, [sys.executable, "-m", "gpu_runner"])  # noqa: S606 - the program is this one
