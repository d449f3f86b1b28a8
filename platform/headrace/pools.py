"""Which runner serves which function: pools by name, and by labels.

A function asks for a pool: a name, or labels such as `gpu=h200,zone=a`. A runner has one pool, by name, and
labels of its own. It serves the functions that ask for its pool, and those all of whose labels it has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

DEFAULT: Final = "default"
"""The pool of functions and runners that name none."""

EVERY: Final = "*"
"""The pool of a runner that serves all functions, whatever they ask for."""

NAME_RULE: Final = "1 to 40 characters, a to z, 0 to 9, - and _, with a letter first"
LABELS_RULE: Final = f"key=value,... with each key once: {NAME_RULE}; a value of 1 to 63, A-Z a-z 0-9 . _ -"

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_VALUE: Final = re.compile(r"[A-Za-z0-9._-]{1,63}")
_MOST_LABELS: Final = 32


def is_name(text: str) -> bool:
    """Whether a pool may be named so."""
    return _NAME.fullmatch(text) is not None


def read_labels(text: str) -> dict[str, str]:
    """Labels from `key=value,key=value`, in the order of their keys; none from an empty text.

    Raises:
        ValueError: the text isn't that; the message has the rule.
    """
    labels: dict[str, str] = {}
    for part in text.split(",") if text.strip() else ():
        key, equals, value = part.strip().partition("=")
        if not (equals and _NAME.fullmatch(key) and _VALUE.fullmatch(value)) or key in labels:
            raise ValueError(f"{text!r} is not allowed: {LABELS_RULE}")
        labels[key] = value
    if len(labels) > _MOST_LABELS:
        raise ValueError(f"{text!r} is not allowed: at most {_MOST_LABELS} labels")
    return dict(sorted(labels.items()))


def write_labels(labels: Mapping[str, str]) -> str:
    """The text that `read_labels` reads."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def read_wish(text: str) -> str:
    """The pool that a function asks for: a name as it is, labels in the order of their keys.

    Raises:
        ValueError: it is neither; the message has the rule.
    """
    if "=" in text:
        return write_labels(read_labels(text))
    if not is_name(text):
        raise ValueError(f"{text!r} is not allowed: {NAME_RULE}; or labels, key=value,...")
    return text


def serves(wish: str, pool: str, labels: Mapping[str, str]) -> bool:
    """Whether a runner of that pool with those labels serves a function with this wish."""
    if pool == EVERY:
        return True
    if "=" in wish:
        return read_labels(wish).items() <= labels.items()
    return wish == pool
