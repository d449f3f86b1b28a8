"""Which sentences of a text say the most, by their vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]
    """Rows of unit length."""

SECTION: Final = 200
"""Sentences of a section, of a text that has more."""

_NEIGHBOURS: Final = 0.4  # from this cosine on, two sentences are about the same
_LEAD: Final = 0.3
_RELEVANCE: Final = 0.7


def sections(sentences: int) -> Iterator[range]:
    """The indices of each section: as many in each, at most `SECTION`."""
    number = math.ceil(sentences / SECTION)
    for section in range(number):
        yield range(section * sentences // number, (section + 1) * sentences // number)


def kept(wanted: int, number: int) -> int:
    """How many sentences each of so many sections hands on, of so many wanted: twice its share, or four.

    Of more than 500 sections fewer than four, as all that are handed on are compared with each other.
    """
    return max(min(4, math.ceil(2000 / number)), math.ceil(2 * wanted / number))


def best(vectors: Vectors, places: Sequence[int], wanted: int) -> list[int]:
    """Rows of the sentences to take, in their order.

    Each has a score, the mean of two measures of how central it is, both scaled to 0 to 1, and a bonus for
    standing early, as what comes first mostly says what a text is about:

        score(i) = (degree(i) + centroid(i)) / 2 + 0.3 / (1 + place(i))

    degree is the number of sentences whose cosine to it is at least 0.4 (degree centrality, in LexRank: Erkan
    and Radev, 2004), centroid the cosine to the mean of all (Radev et al., 2004). Then they are taken one by
    one by maximal marginal relevance (Carbonell and Goldstein, 1998): the next one is that of the highest

        0.7 score(i) - 0.3 max(cosine(i, j) for each j taken already)

    so that no two say the same.

    Args:
        vectors: of the sentences.
        places: of each in the text, counted from 0.
        wanted: how many, at least one.
    """
    import numpy as np

    similar = vectors @ vectors.T
    score = _scores(vectors, similar, np.asarray(places, dtype=np.float32))
    taken: list[int] = []
    repeats = np.zeros(len(vectors), dtype=np.float32)
    for _ in range(min(wanted, len(vectors))):
        gain = _RELEVANCE * score - (1 - _RELEVANCE) * repeats
        gain[taken] = -np.inf
        taken.append(int(gain.argmax()))
        repeats = np.maximum(repeats, similar[taken[-1]])
    return sorted(taken)


def _scores(vectors: Vectors, similar: Vectors, places: Vectors) -> Vectors:
    degree = (similar >= _NEIGHBOURS).sum(axis=1).astype(places.dtype)
    centroid = vectors @ vectors.mean(axis=0)
    score = (_scaled(degree) + _scaled(centroid)) / 2 + _LEAD / (1 + places)
    return score.astype(places.dtype)


def _scaled(values: Vectors) -> Vectors:
    least, most = values.min(), values.max()
    return (values - least) / max(most - least, 1e-9)
