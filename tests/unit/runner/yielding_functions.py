"""A function whose calls are streams."""

from __future__ import annotations

from collections.abc import Iterator

from executor_functions import Ask

from headrace import function


def together(items: list[str]) -> str:
    return "".join(items)


@function(concurrency=4, collect=together)
def letters(input: Ask) -> Iterator[str]:
    yield from input.text
