"""The command line. Commands load when they are asked for, so that `headrace --help` is quick."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import click
from rich_click import RichGroup

from headrace.errors import HeadraceError, SetupError

_COMMANDS: Final = (
    "up",
    "dev",
    "demo",
    "call",
    "jobs",
    "status",
    "functions",
    "models",
    "owners",
    "keys",
    "ops",
    "drain",
    "pause",
    "resume",
    "debug",
    "audit",
    "bench",
    "config",
    "version",
    "gateway",
    "runner",
    "migrate",
)


class _Commands(RichGroup):
    """The group of all commands, each in the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"headrace.cli.{cmd_name}"), cmd_name)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headrace", prog_name="headrace", message="%(prog)s %(version)s")
def commands() -> None:
    """Serve AI functions on your own machines.

    Settings are HEADRACE_* variables, in the environment or in .env; `headrace config` shows them.
    """
    _warn_of_misspelled()


def main() -> NoReturn:
    """Run the command line: an expected failure is one line and exit code 1, wrong usage is 2, Ctrl-C 130."""
    signal.signal(signal.SIGTERM, _leave)
    try:
        _check_python(sys.version_info[:2])
        commands.main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except BrokenPipeError:  # the reader, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except HeadraceError as error:
        if os.environ.get("HEADRACE_DEBUG", "") not in {"", "0"}:
            raise
        for line in str(error).splitlines():
            click.echo(f"headrace: {line}", err=True)
        sys.exit(1)
    sys.exit(0)


def _check_python(version: tuple[int, int]) -> None:
    if not (3, 11) <= version <= (3, 13):
        raise SetupError(
            f"Python {version[0]}.{version[1]} isn't supported: "
            "make the environment again with Python 3.11, 3.12 or 3.13"
        )


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    # An exception instead of the default's sudden end: what a command holds is let go.
    sys.exit(128 + number)


def _warn_of_misspelled() -> None:
    if not Path(".env").is_file() and not any(name.startswith("HEADRACE_") for name in os.environ):
        return
    from headrace.settings import misspelled  # noqa: PLC0415 - slow to load

    for name, meant in misspelled().items():
        click.echo(f"headrace: {name} is no setting and is ignored; did you mean {meant}?", err=True)
