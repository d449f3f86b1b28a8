"""Which of the functions that were found a runner serves."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from headrace import pools
from headrace.errors import SetupError
from headrace.sdk import Function

log = logging.getLogger(__name__)


def of_pool(
    functions: Mapping[str, Function[Any, Any]], pool: str, labels: Mapping[str, str]
) -> dict[str, Function[Any, Any]]:
    """Those that a runner of that pool with those labels serves; the others are named in the log.

    Raises:
        SetupError: there is none; the message says what they ask for.
    """
    served = {
        name: function
        for name, function in functions.items()
        if pools.serves(function.manifest.pool, pool, labels)
    }
    left_out = [function for name, function in functions.items() if name not in served]
    if not served:
        raise SetupError(
            f"none of its functions asks for this runner, which has {_described(pool, labels)}: "
            f"{_wishes(left_out)}. Set HEADRACE_POOL or HEADRACE_LABELS (--pool, --label) to one of these, "
            "or HEADRACE_POOL=* to serve all"
        )
    if left_out:
        log.info("not served here, with %s: %s", _described(pool, labels), _wishes(left_out))
    return served


def _described(pool: str, labels: Mapping[str, str]) -> str:
    return f"pool {pool}, {f'labels {pools.write_labels(labels)}' if labels else 'no labels'}"


def _wishes(functions: Iterable[Function[Any, Any]]) -> str:
    names: dict[str, list[str]] = {}
    for function in functions:
        names.setdefault(function.manifest.pool, []).append(function.name)
    return "; ".join(
        f"{', '.join(sorted(some))} {'asks' if len(some) == 1 else 'ask'} for "
        f"{'labels' if '=' in wish else 'pool'} {wish}"
        for wish, some in sorted(names.items())
    )
