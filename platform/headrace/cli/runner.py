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
def runner(functions: str | None, device: str | None, advertise: str | None) -> NoReturn:
    """Load models and serve functions until SIGTERM; modules in the current folder are found first."""
    from headrace.settings import load_settings  # noqa: PLC0415 - slow to load
    from headrace.site import runner_environment  # noqa: PLC0415

    settings = load_settings(functions=functions, device=device, runner_advertise=advertise)
    os.environ.update(runner_environment(settings))
    os.execv(sys.executable, [sys.executable, "-m", "gpu_runner"])  # noqa: S606 - the program is this one
