"""Texts that end an answer: what may be the beginning of one isn't shown before that is certain."""

from __future__ import annotations

from collections.abc import Sequence

from functions._pieces import Pieces


class PiecesUntil:
    """The text of one generation as it grows, up to the first stop text, which is left out.

    Of several stop texts that one counts which is complete first, and of these the longest: so it makes no
    difference how the text is cut into tokens.

    Args:
        pieces: of the generation.
        stops: the texts, none of them empty; without any, all is shown as soon as it is complete.
    """

    def __init__(self, pieces: Pieces, stops: Sequence[str]) -> None:
        self._pieces = pieces
        self._stops = stops
        self._beginnings = {stop[:length] for stop in stops for length in range(1, len(stop))}
        self._longest = max(map(len, stops), default=0) - 1
        self._held: str = ""
        self.tokens = 0
        """How many were taken, the one that completed a stop text included, and none after it."""
        self.has_stopped = False

    def add(self, tokens: Sequence[int]) -> str:
        """The text that can be shown by these tokens; empty where none can."""
        if not self._stops:
            self.tokens += len(tokens)
            return self._pieces.add(tokens)
        shown = ""
        for token in tokens:
            self.tokens += 1
            shown += self._before_stop(self._pieces.add((token,)))
            if self.has_stopped:
                break
        return shown

    def end(self) -> str:
        """What is left when no token comes any more."""
        if self.has_stopped:
            return ""
        shown = self._before_stop(self._pieces.end())
        return shown if self.has_stopped else shown + self._held

    def _before_stop(self, added: str) -> str:
        text = self._held + added
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.has_stopped = True
            self._held = ""
            return text[: min(found)[1]]
        certain = len(text) - self._may_begin_stop(text)
        self._held = text[certain:]
        return text[:certain]

    def _may_begin_stop(self, text: str) -> int:
        """How many characters at the end are the beginning of a stop text."""
        lengths = range(min(self._longest, len(text)), 0, -1)
        return next((length for length in lengths if text[-length:] in self._beginnings), 0)
