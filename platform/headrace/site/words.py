"""How `headrace dev` puts into words what becomes of files and runners."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headrace.errors import HeadraceError
from headrace.site.child import Child

_ERROR: Final = "headrace runner: "
_MOST_NAMED: Final = 3


def names(paths: Sequence[Path]) -> str:
    """Files, seen from the current folder; of many, the first ones."""
    here = Path.cwd()
    named = [str(path.relative_to(here) if path.is_relative_to(here) else path) for path in paths]
    more = len(named) - _MOST_NAMED
    return ", ".join(named[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def why(child: Child, end: str) -> str:
    """Why a runner didn't start: its own line about it, or the last ones that are none of its log's."""
    lines = [_shorter(line) for line in _plain_lines(child)[-15:]]
    return own_line(child) or "\n            ".join([f"the runner ended ({end}); log: {child.log}", *lines])


def own_line(child: Child) -> str:
    """The line by which a runner says why it can't start, and what follows it; empty if there is none."""
    lines = _plain_lines(child)
    for number in reversed(range(len(lines))):
        if lines[number].startswith(_ERROR):
            lines[number] = lines[number].removeprefix(_ERROR)
            return "\n            ".join(_shorter(line) for line in lines[number:])
    return ""


def _plain_lines(child: Child) -> list[str]:
    return [line for line in child.last_lines(200) if not line.startswith("{")]


def described(error: BaseException | None) -> str:
    """An expected error speaks for itself; another one is named."""
    return str(error) if isinstance(error, (HeadraceError, OSError)) else repr(error)


def _shorter(line: str) -> str:
    return line.replace(f"{Path.cwd()}/", "")
