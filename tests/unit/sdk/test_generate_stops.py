"""Stop texts: nothing of one is shown, wherever tokens and steps cut it."""

from __future__ import annotations

import random

import pytest

from functions._stops import PiecesUntil


class Spelled:
    """In place of `Pieces`: each token is a text."""

    def __init__(self, rest: str = "") -> None:
        self._rest = rest

    def add(self, tokens) -> str:
        return "".join(tokens)

    def end(self) -> str:
        return self._rest


def until(tokens: list[str], stops: list[str], *, step: int = 1, rest: str = ""):
    pieces = PiecesUntil(Spelled(rest), stops)
    shown = []
    for at in range(0, len(tokens), step):
        shown.append(pieces.add(tokens[at : at + step]))
        if pieces.has_stopped:
            break
    return "|".join([*shown, pieces.end()]), pieces.has_stopped, pieces.tokens


@pytest.mark.parametrize(
    ("tokens", "stops", "expected"),
    [
        (["a", "b", "c"], ["bc"], ("a|||", True, 3)),  # nothing of it is shown while it may come
        (["a", "b", "d"], ["bc"], ("a||bd|", False, 3)),
        (["a", "b"], ["bc"], ("a||b", False, 2)),  # it doesn't come any more
        (["ab", "ab", "c"], ["abc"], ("|ab||", True, 3)),
        (["a", "a", "b"], ["aab", "ab"], ("|||", True, 3)),  # both at once: the longest
        (["xabcd"], ["abcd", "bc"], ("xa|", True, 1)),  # the one that is complete first
        (["\n", "\n", "x"], ["\n\n"], ("||", True, 2)),
        (["a"], ["a"], ("|", True, 1)),
        (["🦆", "q"], ["🦆q"], ("||", True, 2)),
    ],
)
def test_stop_texts_across_tokens(tokens, stops, expected):
    assert until(tokens, stops) == expected


def test_several_tokens_of_one_step_are_counted_up_to_the_stop():
    assert until(["a", "b", "c", "d", "e"], ["cd"], step=5) == ("ab|", True, 4)
    assert until(["a"], ["�"], rest="�x") == ("a|", True, 1)


def test_cut_anywhere_the_same_is_shown():
    rng = random.Random(3)
    for _ in range(300):
        text = "".join(rng.choices("ab\n", k=20))
        stops = ["".join(rng.choices("ab\n", k=rng.randint(1, 4))) for _ in range(3)]
        cuts = sorted(rng.sample(range(1, 20), 5))
        tokens = [text[i:j] for i, j in zip([0, *cuts], [*cuts, 20], strict=True)]
        singly = until(list(text), stops)
        assert [part.replace("|", "") for part in until(tokens, stops)[:1]] == [singly[0].replace("|", "")]
        ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
        assert singly[1:] == ((True, min(ends)) if ends else (False, 20))
