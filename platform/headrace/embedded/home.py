"""The folder of `HEADRACE_HOME`: made by `up` and `migrate`, only looked for by everything else."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import SetupError


def make_home(home: Path) -> None:
    """Make the folder unless it is there; git is told to leave a new one alone, as it holds a key.

    Raises:
        OSError: it can't be made.
    """
    home.parent.mkdir(parents=True, exist_ok=True)
    try:
        home.mkdir(mode=0o700)
    except FileExistsError:
        if not home.is_dir():
            raise
    else:
        (home / ".gitignore").write_text("*\n")


def no_home(home: Path, otherwise: str) -> SetupError:
    """The error for a home that isn't there, with what else could be set."""
    return SetupError(
        f"there is no Headrace home in {home}: "
        f"run this in the folder of `headrace up`, or set HEADRACE_HOME (or {otherwise})"
    )
