"""What a function is measured with: its examples, or a file's inputs, as they are and made larger."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from headrace.domain import CostTerm
from headrace.errors import InvalidInput, SetupError
from headrace.sdk import Function


class Input:
    """An input of the function as JSON, with its cost."""

    def __init__(self, data: bytes, cost: float) -> None:
        self.data = data
        self.cost = cost


def inputs_of(function: Function[Any, Any], path: Path | None) -> list[Input]:
    """The inputs of a file, one document or one a line, or else the function's examples.

    Raises:
        SetupError: there are none, or one isn't an input of the function.
    """
    if path is None:
        values, origin = function.manifest.examples, "example"
        if not values:
            raise SetupError(
                f"{function.name} has no examples: give it some, @function(examples=[...]), or --input FILE"
            )
    else:
        values, origin = _read(path), f"{path}: input"
    return [_checked(function, value, f"{origin} {number}") for number, value in enumerate(values, 1)]


def _read(path: Path) -> list[Any]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{path} can't be read: {error}") from None
    try:
        return [json.loads(text)]
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
    try:
        values = [json.loads(line) for line in lines]
    except ValueError as error:
        raise SetupError(f"{path} is neither JSON nor JSON in each line: {error}") from None
    if not values:
        raise SetupError(f"{path} has no input")
    return values


def _checked(function: Function[Any, Any], value: Any, name: str) -> Input:
    data = json.dumps(value).encode()
    most = function.manifest.limits.input
    if len(data) > most:
        raise SetupError(f"{name}: it has {len(data)} bytes, {function.name} takes {most} at most")
    try:
        function.decode(data)
    except InvalidInput as error:
        place = f" at {error.path}" if error.path else ""
        raise SetupError(f"{name}{place}: {error}") from None
    return Input(data, function.manifest.cost.of(value))


def grows(function: Function[Any, Any], one: Input) -> bool:
    """Whether there are larger inputs like this one, as far as its cost tells."""
    cost = function.manifest.cost
    constant = sum(term.weight for term in cost.terms if term.kind == "constant")
    return one.cost > constant


def sized(function: Function[Any, Any], one: Input, cost: float) -> Input:
    """An input like this one whose cost is about that.

    Lists get more elements, which are the same again; texts that aren't in a list get longer, and numbers
    larger. Where a list may have no more elements, the texts in it get longer.

    Raises:
        SetupError: the function takes none; with why.
    """
    constant = sum(term.weight for term in function.manifest.cost.terms if term.kind == "constant")
    factor = (cost - constant) / (one.cost - constant)
    why = ""
    for lengthen in (False, True):
        value = json.loads(one.data)
        for term in function.manifest.cost.terms:
            value = _scaled(value, term, factor, lengthen=lengthen)
        try:
            return _checked(function, value, "")
        except SetupError as error:
            why = str(error).strip(" :")
    raise SetupError(why)


def _scaled(value: Any, term: CostTerm, factor: float, *, lengthen: bool) -> Any:
    if term.kind == "constant":
        return value
    return _replaced(value, list(filter(None, term.path.split("."))), factor, lengthen)


def _replaced(value: Any, path: Sequence[str], factor: float, lengthen: bool) -> Any:
    if not path:
        return _larger(value, factor, lengthen)
    if not isinstance(value, dict) or path[0] not in value:
        return cast("Any", value)
    known = cast("dict[str, Any]", value)
    return {**known, path[0]: _replaced(known[path[0]], path[1:], factor, lengthen)}


def _larger(value: Any, factor: float, lengthen: bool) -> Any:
    if isinstance(value, str):
        return _repeated(value, factor)
    if isinstance(value, list):
        parts = cast("list[Any]", value)
        if lengthen and all(isinstance(part, str) for part in parts):
            return [_repeated(part, factor) for part in parts]
        count = max(1, round(len(parts) * factor))
        return [parts[index % len(parts)] for index in range(count)] if parts else parts
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor


def _repeated(text: str, factor: float) -> str:
    length = max(1, round(len(text) * factor))
    return (text * math.ceil(length / len(text)))[:length] if text else text
