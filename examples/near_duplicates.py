r"""Finds texts that are nearly the same, by MinHash: work for one core, of 16 MB for half a minute.

    HEADRACE_FUNCTIONS=examples.near_duplicates make up

    curl -s http://127.0.0.1:8000/fn/near_duplicates \
      -H "Authorization: Bearer $(cat .headrace/key)" \
      -H 'Content-Type: application/json' \
      -d '{"texts": ["The mill stands still.", "A turbine hums.", "The mill stands still!"]}'

Its cost is declared: Headrace learns from it how long so many characters take, and makes a job of what won't
be ready in time. Started again after a lost process it gives the same answer, as it draws nothing by chance
and leaves nothing behind.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, Field

from headrace import Budget, Call, Cost, Limits, function

if TYPE_CHECKING:
    import numpy as np

BANDS: Final = 32
ROWS: Final = 4
_SHINGLE: Final = 5  # characters


class Texts(BaseModel):
    """Texts to compare."""

    texts: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=20_000)]], Field(min_length=1, max_length=10_000)
    ]
    threshold: Annotated[float, Field(ge=0.5, le=1, description="The least similarity of a duplicate.")] = 0.8


class Duplicate(BaseModel):
    """A text that is nearly the same as an earlier one which is kept."""

    index: int
    of: int
    similarity: float = Field(description="Jaccard's: the share of their 5-character pieces that both have.")


class Distinct(BaseModel):
    """Which texts to keep, by their places from 0, and what the others are like."""

    kept: list[int]
    duplicates: list[Duplicate]


@function(
    budget=Budget(sync=10, queue=120, soft=170, hard=180),
    limits=Limits(input="16MiB", output="1MiB"),
    cost=Cost.chars("texts") + Cost.items("texts", weight=300),
    attempts=3,
    examples=[{"texts": ["The mill stands still.", "The mill stands still!", "A turbine hums."]}],
)
def near_duplicates(input: Texts, *, call: Call) -> Distinct:
    """Which of the texts say something new, from the first to the last.

    Texts meet where their signatures have one of 32 bands of 4 numbers in common (Leskovec, Rajaraman,
    Ullman: Mining of Massive Datasets, section 3.4), and are compared exactly then. So none is left out that
    is less similar than `threshold`; a pair as similar as 0.8 is missed once in 20 million, as 0.5 once in 8.
    """
    found = Distinct(kept=[], duplicates=[])
    buckets: defaultdict[tuple[int, bytes], list[int]] = defaultdict(list)
    pieces: dict[int, set[str]] = {}
    for index, text in enumerate(input.texts):
        call.check()
        if index % 100 == 0:
            call.progress(index / len(input.texts), f"{index} of {len(input.texts)} texts")
        mine = shingles(text)
        keys = list(enumerate(signature(mine).reshape(BANDS, ROWS)))
        met = {other for band, part in keys for other in buckets.get((band, part.tobytes()), ())}
        similarity, of = max(((jaccard(mine, pieces[one]), one) for one in met), default=(0.0, -1))
        if similarity >= input.threshold:
            found.duplicates.append(Duplicate(index=index, of=of, similarity=similarity))
            continue
        found.kept.append(index)
        pieces[index] = mine
        for band, part in keys:
            buckets[band, part.tobytes()].append(index)
    return found


def shingles(text: str) -> set[str]:
    """All pieces of 5 characters, whatever the case and the spaces; a shorter text is one piece."""
    plain = " ".join(text.lower().split())
    return {plain[at : at + _SHINGLE] for at in range(max(1, len(plain) - _SHINGLE + 1))}


def jaccard(left: set[str], right: set[str]) -> float:
    """The share of the pieces of both that both have."""
    return len(left & right) / len(left | right)


def signature(pieces: set[str]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Of the pieces, the first in each of 128 orders: the more of them two texts share, the more alike."""
    import numpy as np

    factors, offsets = np.random.default_rng(7).integers(1, 2**63, (2, BANDS * ROWS, 1), np.uint64)
    hashes = np.fromiter((zlib.crc32(piece.encode()) for piece in pieces), np.uint64, len(pieces))
    return (((factors | np.uint64(1)) * hashes + offsets) >> np.uint64(32)).min(axis=1).astype(np.uint32)
