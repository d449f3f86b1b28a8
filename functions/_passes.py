"""Texts put into forward passes of a sentence encoder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

# Padded tokens in one forward pass: 32 short texts or 4 long ones. On a CPU, more gains nothing.
TOKENS_PER_PASS: Final = {"cpu": 1024, "cuda": 65536}


def passes(tokens: list[list[int]], limit: int) -> Iterator[list[int]]:
    """Indices of the texts of each forward pass: neighbours in length, so that little is padded.

    Args:
        tokens: of each text.
        limit: of padded tokens in one pass; a longer text has one for itself.
    """
    if not tokens:
        return
    group: list[int] = []
    for index in sorted(range(len(tokens)), key=lambda index: len(tokens[index])):
        if group and (len(group) + 1) * len(tokens[index]) > limit:
            yield group
            group = []
        group.append(index)
    yield group
