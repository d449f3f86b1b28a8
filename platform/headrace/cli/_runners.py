"""How people name a runner. Imported inside command bodies: slow to load."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.domain import RunnerInfo
from headrace.errors import HeadraceError


def named(runners: Sequence[RunnerInfo], name: str) -> RunnerInfo:
    """The one whose id begins so, or ends so, as `headrace status` shortens ids to their ends.

    Raises:
        HeadraceError: there is none, or more than one.
    """
    wanted = name.lower().removeprefix("..")
    found = [one for one in runners if wanted and one.runner_id.startswith(wanted)]
    found = found or [one for one in runners if wanted and one.runner_id.endswith(wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        raise HeadraceError(f"{name!r} may be any of {_listed(found)}: give more of the id")
    if not runners:
        raise HeadraceError(f"there is no runner {name!r}: no runner lives")
    raise HeadraceError(f"there is no runner {name!r}; those that live: {_listed(runners)}")


def _listed(runners: Sequence[RunnerInfo]) -> str:
    return ", ".join(one.runner_id for one in runners)
