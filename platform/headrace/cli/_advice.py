"""What a person at the command line can do about a problem. Slow to load: inside command bodies."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

from headrace.gateway.problem_kinds import KINDS

_COME_BACK: Final = (
    "Try again after `Retry-After` seconds, or let the command do so, with its place in line: "
    "`headrace call NAME INPUT --patience TIME`."
)

_OWN: Final[Mapping[str, str]] = {
    "missing-key": "Give one by --key or HEADRACE_KEY; an operator makes keys with `headrace keys create`.",
    "unknown-function": (
        "`headrace functions` lists the functions; one appears when a runner that serves it starts."
    ),
    "unknown-job": "`headrace jobs list` lists your jobs.",
    "unknown-batch": "Compare the id with the one that the batch was accepted under.",
    "not-finished": "`headrace jobs follow ID` waits for it.",
    "already-finished": "`headrace jobs show ID` says how it ended.",
    "not-retryable": (
        "`headrace jobs show ID` says how it stands; make another call if it is wanted once more."
    ),
    "function-retired": "Stop calling it; `headrace functions` lists what there is.",
    "payload-too-large": "Send less in one call; the site's page /docs gives the limit in bytes.",
    "invalid-input": "Correct the input; the function's schema is on the site's page /docs.",
    "function-degraded": (
        "Try again after `Retry-After` seconds; `headrace models` and the runner's log have the cause."
    ),
    "busy": (
        "Try again after `Retry-After` seconds, or make it a job, which waits for its turn: "
        "`headrace call NAME INPUT --async`. `--patience TIME` comes back by itself. More room is the "
        "operator's to give (HEADRACE_EXECUTORS)."
    ),
    "backlog-full": _COME_BACK,
    "no-capacity": (
        f"{_COME_BACK} A job may wait as long as the function's `queue` budget and --deadline allow; more "
        "runners are the operator's to give."
    ),
    "hold-exceeded": (
        "Send less in one call, or make it a job: `headrace call NAME INPUT --async`. More time is for the "
        "function's developer to give (`sync` in its budget), up to the operator's HEADRACE_MAX_HOLD."
    ),
}
"""In place of what is said to clients in HTTP."""


def advice(code: str, retry_after: int | None = None) -> str:
    """What can be done about a kind of problem; empty for an unknown one.

    Args:
        code: the problem's code.
        retry_after: seconds after which the site wants to be asked again.
    """
    kind = KINDS.get(code)
    said = _OWN.get(code, kind.remedy if kind else "")
    if retry_after is None:
        return said
    timed = said.replace("`Retry-After` seconds", f"{retry_after} s")
    return timed if timed != said else f"{said} Try again after {retry_after} s.".strip()


def unknown_code(code: str) -> str:
    """What to say where this is no code of a problem; empty for one that is."""
    if code in KINDS:
        return ""
    near = difflib.get_close_matches(code, KINDS, 1, 0.7)
    meant = f"; did you mean {near[0]}?" if near else ": the site's page /problems has all"
    return f"there is no category {code!r}{meant}"


def advice_on_job(code: str) -> str:
    """The same for the problem that a job ended with, which the job's id names."""
    return advice(code).replace("the request id", "the job's id").replace("`Retry-After` seconds", "a while")
