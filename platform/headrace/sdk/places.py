"""Where something is declared, and errors that say so."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from headrace.errors import DeclarationError


def caller(depth: int = 1) -> FrameType:
    """The frame that called the asking function; with `depth`, that many further up."""
    frame = inspect.currentframe()
    for _ in range(depth + 1):
        assert frame is not None
        frame = frame.f_back
    assert frame is not None
    return frame


@dataclass(frozen=True, slots=True)
class Place:
    """A declaration in a user's file.

    Args:
        file: the file as Python knows it.
        line: the declaration's first line, its decorator.
        what: the thing declared, such as `function 'score'`.
    """

    file: str
    line: int
    what: str

    @classmethod
    def of(cls, declared: Callable[..., Any], kind: str) -> Place:
        """The place of a Python function that is declared as a `kind`."""
        code = inspect.unwrap(declared).__code__
        return cls(code.co_filename, code.co_firstlineno, f"{kind} {declared.__name__!r}")

    @classmethod
    def of_caller(cls, what: str) -> Place:
        """The line that called into the function which asks."""
        frame = caller(2)
        return cls(frame.f_code.co_filename, frame.f_lineno, what)

    def error(self, field: str, message: str) -> DeclarationError:
        """The error that names this place and the field at fault."""
        where = f"{self.what}, {field}" if field else self.what
        return DeclarationError(f"{self}: {where}: {message}")

    def not_yet(self, feature: str) -> DeclarationError:
        """The error for a feature that this version lacks."""
        return DeclarationError(
            f"{self}: {self.what}: {feature} is not yet supported in this version of Headrace"
        )

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"
