"""Tokens to text, piece by piece: no character is shown before all of its bytes are there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

_INCOMPLETE: Final = "\N{REPLACEMENT CHARACTER}"
_LONGEST_INCOMPLETE: Final = 3  # the bytes of a character less one


class Pieces:
    """The text of one generation as it grows.

    Decoded is the newest part only, from a token before it on: some tokenizers drop the space that a text
    begins with, so a token's own text depends on whether another is before it.

    Args:
        tokenizer: of the model; its special tokens are left out.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []
        self._tokens: list[int] = []
        self._shown = 0  # characters of these tokens

    def add(self, tokens: Iterable[int]) -> str:
        """The text that has become complete by these tokens; empty where none has."""
        self._tokens += tokens
        text = self._text()
        complete = len(text) - _incomplete(text)
        piece = text[self._shown : complete]
        self._shown = max(self._shown, complete)
        if complete == len(text) and piece:
            self._before, self._tokens, self._shown = self._tokens, [], 0
        return piece

    def end(self) -> str:
        """What is left when no token comes any more: the mark of what stayed incomplete, or really meant."""
        piece = self._text()[self._shown :]
        self._before, self._tokens, self._shown = self._tokens, [], 0
        return piece

    def _text(self) -> str:
        before = self._decoded(self._before)
        return self._decoded(self._before + self._tokens)[len(before) :]

    def _decoded(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def _incomplete(text: str) -> int:
    """How many characters at the end may still become others."""
    end = text[-_LONGEST_INCOMPLETE:]
    return len(end) - len(end.rstrip(_INCOMPLETE))
