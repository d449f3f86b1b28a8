"""`embed`: how close its vectors are to the library's in fp32, and how well they tell what means the same.

The texts and the pairs with their marks are in tests/quality/embed_*. By the texts it was chosen what is
computed in fp32 beside products in bf16. Nothing was tuned on the pairs: the model is as it comes, so both
halves of them measure the same. Those in embed_pairs_fresh.json were written and committed after the function
was finished, and are measured once.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from functions._encoder import Encoder
from functions.embed import EmbedInput, EmbedOutput, embed, minilm
from headrace import Call, Device

_DATA: Final = Path(__file__).parents[2] / "tests" / "quality"
_AT_A_TIME: Final = 50


@dataclass(frozen=True)
class Pair:
    """Two sentences.

    Args:
        mark: how alike their meanings are, 0 to 5.
        left: one of them.
        right: the other.
        held_out: whether it is in the half that isn't for tuning.
    """

    mark: float
    left: str
    right: str
    held_out: bool = False


def texts() -> list[str]:
    """Texts of many languages, scripts and lengths, of one word to more than the model reads."""
    return [
        line
        for name in ("embed_texts.txt", "embed_short_texts.txt", "embed_long_texts.txt")
        for line in (_DATA / name).read_text().splitlines()
    ]


def pairs(file: str = "embed_pairs.json") -> list[Pair]:
    """All pairs of a file in tests/quality, in the order in which they were written."""
    return [Pair(**one) for one in json.loads((_DATA / file).read_text())["pairs"]]


def vectors(given: Sequence[str], encoder: Encoder) -> list[list[float]]:
    """By the function."""
    end = time.monotonic() + 3600
    made: list[list[float]] = []
    for first in range(0, len(given), _AT_A_TIME):
        call = Call(job_id="j", attempt=1, soft_at=end, deadline_at=end)
        one = EmbedInput(texts=list(given[first : first + _AT_A_TIME]))
        (output,) = cast(Any, embed).fn([one], calls=[call], encoder=encoder)
        assert isinstance(output, EmbedOutput)
        made += cast(list[list[float]], output.vectors)
    return made


def reference(given: Sequence[str], encoder: Encoder) -> list[list[float]]:
    """By the library, in fp32, from the same files."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - slow to load

    from functions._model_cache import model_path  # noqa: PLC0415 - likewise
    from functions.embed import MODEL_SETTING  # noqa: PLC0415 - likewise

    device = str(encoder.device)
    folder = str(model_path("embed", MODEL_SETTING))
    library = SentenceTransformer(folder, device=device, local_files_only=True).float()
    return cast(Any, library).encode(list(given), normalize_embeddings=True).tolist()


def cosine(left: Sequence[float], right: Sequence[float]) -> float:
    """Of vectors that aren't zero."""
    return _dot(left, right) / (_length(left) * _length(right))


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(map(float.__mul__, left, right))


def _length(vector: Sequence[float]) -> float:
    return math.sqrt(_dot(vector, vector))


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """The correlation of ranks; equal ones share theirs."""
    ranks = [_ranks(left), _ranks(right)]
    centred = [[rank - (len(left) + 1) / 2 for rank in one] for one in ranks]
    return cosine(*centred)


def _ranks(values: Sequence[float]) -> list[float]:
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2
        for value in values
    ]


# ---------------------------------------------------------------------- what is compared


def by_embed(given: Sequence[Pair], encoder: Encoder) -> list[float]:
    """The cosine of the vectors."""
    lefts = vectors([pair.left for pair in given], encoder)
    rights = vectors([pair.right for pair in given], encoder)
    return [cosine(left, right) for left, right in zip(lefts, rights, strict=True)]


def by_overlap(given: Sequence[Pair]) -> list[float]:
    """The share of words that are in both (Jaccard)."""
    sets = [(set(_words(pair.left)), set(_words(pair.right))) for pair in given]
    return [len(left & right) / len(left | right) for left, right in sets]


def by_tf_idf(given: Sequence[Pair]) -> list[float]:
    """The cosine of counts of words, rare ones weighing more; how rare, these sentences say."""
    sentences = [_words(text) for pair in given for text in (pair.left, pair.right)]
    spread = Counter(word for words in sentences for word in set(words))
    names = sorted(spread)
    weights = {word: math.log((1 + len(sentences)) / (1 + spread[word])) + 1 for word in names}

    def vector(text: str) -> list[float]:
        counts = Counter(_words(text))
        return [counts[word] * weights[word] for word in names]

    return [cosine(vector(pair.left), vector(pair.right)) for pair in given]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def measure() -> list[str]:
    """The part about `embed`."""
    encoder = minilm.load(Device("cpu"))
    given = texts()
    ours, theirs = vectors(given, encoder), reference(given, encoder)
    closeness = sorted(cosine(left, right) for left, right in zip(ours, theirs, strict=True))
    every, fresh = pairs(), pairs("embed_pairs_fresh.json")
    methods: dict[str, Callable[[Sequence[Pair]], list[float]]] = {
        f"`embed`, {encoder.name}": lambda some: by_embed(some, encoder),
        "TF-IDF": by_tf_idf,
        "overlap of words": by_overlap,
    }
    cut = len(encoder.read(given).whole)
    dtype = str(encoder.library.dtype).removeprefix("torch.")
    return [
        f"Cosine of its vectors, computed in {dtype}, to those of its library in fp32, on {len(given)} texts "
        f"in many languages and scripts, of one character to a page ({cut} longer than the model reads): "
        f"least {closeness[0]:.6f}, median {closeness[len(closeness) // 2]:.6f}.",
        "",
        f"Spearman's correlation with marks for how alike two sentences are, {len(every)} pairs in English, "
        f"and {len(fresh)} fresh ones:",
        "",
        "| | all | not held out | held out | fresh |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {name} | "
            + " | ".join(f"{_against_marks(method, some):.2f}" for some in (*_parts(every), fresh))
            + " |"
            for name, method in methods.items()
        ),
    ]


def _parts(every: list[Pair]) -> list[list[Pair]]:
    return [every, [pair for pair in every if not pair.held_out], [pair for pair in every if pair.held_out]]


def _against_marks(method: Callable[[Sequence[Pair]], list[float]], some: Sequence[Pair]) -> float:
    return spearman(method(some), [pair.mark for pair in some])
