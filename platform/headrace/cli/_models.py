"""Models by name, and how they stand, for people. Slow to load: inside command bodies."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from headrace.capacity import ModelStanding, Report
from headrace.cli._sizes import size
from headrace.cli._table import fitted, short_id
from headrace.cli.output import plain
from headrace.errors import HeadraceError
from headrace.runner_requests import ANSWERED_WITHIN_S, ModelAnswer

_MODELS_HEAD: Final = (
    *("RUNNER", "EXECUTOR", "DEVICE", "MODEL", "STATE", "SIZE", "DECLARED", "USED", "LOAD", "FUNCTIONS"),
)
_DROPPED: Final = ("DECLARED", "DEVICE", "LOAD")


# ---------------------------------------------------------------------- names


def wanted_models(reports: Mapping[str, Report], name: str) -> dict[str, list[str]]:
    """The runners that know the models that are meant, by the models' names.

    Args:
        reports: of the runners that live, or of those that were asked for.
        name: a model's, whole or without its module, or a function's: then all that it uses are meant.

    Raises:
        HeadraceError: there is no such name, or it may mean several models.
    """
    if not reports:
        raise HeadraceError("no runner lives, or none has told of its models yet")
    known = {one.model: one for report in reports.values() for one in report.models}
    models = sorted(_of_function(reports, name) or _of_name(known, name))
    return {model: [runner for runner, report in reports.items() if _has(report, model)] for model in models}


def _of_function(reports: Mapping[str, Report], name: str) -> set[str]:
    served = [report for report in reports.values() if name in report.functions]
    models = {one.model for report in served for one in report.models if name in one.functions}
    if served and not models:
        raise HeadraceError(f"the function {name} uses no model")
    return models


def _of_name(known: Iterable[str], name: str) -> set[str]:
    found = {model for model in known if name in (model, model.partition(":")[2])}
    if len(found) == 1:
        return found
    if found:
        raise HeadraceError(f"{name!r} may be any of {', '.join(sorted(found))}")
    models = ", ".join(sorted(known))
    there_are = f"models: {models}" if models else "no function uses a model"
    raise HeadraceError(f"there is no model or function {name!r}; {there_are}")


def _has(report: Report, model: str) -> bool:
    return any(one.model == model for one in report.models)


# ---------------------------------------------------------------------- what a runner said


def said(model: str, runner_id: str, answer: ModelAnswer | None) -> str:
    """What becomes of a model, in a sentence.

    Raises:
        HeadraceError: nothing does.
    """
    where = f"in runner {short_id(runner_id)}"
    if answer is None:
        raise HeadraceError(
            f"runner {short_id(runner_id)} hasn't answered within {ANSWERED_WITHIN_S:g} s: "
            "frozen, lost, or without its connection to Postgres"
        )
    match answer.outcome:
        case "unknown":
            raise HeadraceError(f"no function {where} uses model {model}")
        case "too-large":
            raise HeadraceError(f"model {model} can't be loaded {where}: {plain(answer.reason)}")
        case "loaded":
            return f"model {model} is loaded {where} already"
        case "loading":
            took = f"; it took {answer.load_s:.1f} s the last time" if answer.load_s else ""
            return f"model {model} is to be loaded {where}{took}"
        case "absent":
            return f"model {model} isn't loaded {where}"
        case "unloading":
            return f"model {model} is unloaded {where}"
        case "in-use":
            calls = f"{answer.users} call{'' if answer.users == 1 else 's'}"
            return f"model {model} is in use {where}: it goes after {calls}, and no other starts before"


def end_of_load(model: str, runner_id: str, report: Report | None, *, is_news: bool) -> str | None:
    """How loading a model has ended, by what its runner reports; None while it goes on.

    Args:
        model: its name.
        runner_id: the runner.
        report: what it reports; None: it is gone.
        is_news: whether the report is newer than the request.

    Raises:
        HeadraceError: it has failed, or will not happen.
    """
    where = f"in runner {short_id(runner_id)}"
    if report is None:
        raise HeadraceError(f"runner {short_id(runner_id)} has left, or was lost")
    standing = [one for one in report.models if one.model == model]
    if not is_news:
        return None  # of the time before: the model may have been unloaded since, or have failed before
    for one in standing:
        if one.state == "loaded":
            return (
                f"model {model} is loaded {where}, executor {one.executor}, on {one.device}: "
                f"{size(one.size)} in {one.load_s:.1f} s"
            )
    if any(one.state in ("loading", "waiting") for one in standing):
        return None
    for one in standing:
        if one.state == "failed":
            raise HeadraceError(f"{plain(one.reason)} ({where})")
    raise HeadraceError(_no_room(model, where, report))


def _no_room(model: str, where: str, report: Report) -> str:
    used = ", ".join(f"{size(one.used)} of {size(one.budget)} on {one.device}" for one in report.devices)
    busy = ", ".join(sorted({one.model for one in report.models if one.in_use}))
    others = f"; in use: {busy}" if busy else ""
    return f"model {model} wasn't loaded {where}, for want of room: {used} are taken{others}"


# ---------------------------------------------------------------------- the list


def document(reports: Mapping[str, Report]) -> list[dict[str, Any]]:
    """All of it, for programs."""
    return [
        {
            "runner_id": runner_id,
            "models": msgspec.to_builtins(report.models),
            "devices": msgspec.to_builtins(report.devices),
        }
        for runner_id, report in reports.items()
    ]


def listed(reports: Mapping[str, Report], width: int | None, now: float | None = None) -> str:
    """Two tables: the models, and the memory that they share."""
    if not reports:
        return "no runner lives, or none has told of its models yet"
    at = time.time() if now is None else now
    models = [(runner_id, one) for runner_id, report in reports.items() for one in report.models]
    rows = [_row(runner_id, one, at) for runner_id, one in models]
    shorten = {"RUNNER": short_id}
    parts = [fitted(_MODELS_HEAD, rows, width, shorten=shorten, drop=_DROPPED, cut="FUNCTIONS")]
    if not models:
        parts = ["no function uses a model"]
    parts += [_devices(reports, width), *_reasons(models)]
    return "\n\n".join(parts)


def _row(runner_id: str, one: ModelStanding, now: float) -> Sequence[str]:
    return (
        runner_id,
        "" if one.executor < 0 else str(one.executor),
        one.device,
        plain(one.model),
        one.state,
        size(one.size) if one.size else "",
        size(one.declared) if one.declared else "",
        _used(one, now),
        f"{one.load_s:.1f} s" if one.load_s else "",
        ",".join(one.functions),
    )


def _used(one: ModelStanding, now: float) -> str:
    if one.in_use:
        return f"by {one.in_use} now"
    return f"{max(0.0, now - one.used_at):.0f} s ago" if one.used_at else ""


def _devices(reports: Mapping[str, Report], width: int | None) -> str:
    rows = [
        (runner_id, one.device, size(one.used), size(one.budget) if one.budget else "")
        for runner_id, report in reports.items()
        for one in report.devices
    ]
    return fitted(("RUNNER", "DEVICE", "TAKEN", "BUDGET"), rows, width, shorten={"RUNNER": short_id})


def _reasons(models: Iterable[tuple[str, ModelStanding]]) -> list[str]:
    reasons = [f"{short_id(runner_id)}: {plain(one.reason)}" for runner_id, one in models if one.reason]
    return ["\n".join(dict.fromkeys(reasons))] if reasons else []
