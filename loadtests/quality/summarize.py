"""`summarize`: how often the sentence that says what an article is about is in its summary of three.

The articles and the marks are in tests/quality/summaries.json; those in summaries_fresh.json were written and
committed after the function was finished, and are measured once. Beside it: the first three sentences, three
by chance, and plain LexRank (Erkan and Radev, 2004) over the same vectors.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from functions._encoder import Encoder
from functions._sentences import sentences
from functions.embed import minilm
from functions.summarize import SummarizeInput, Summary, summarize
from headrace import Call, Device

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DATA: Final = Path(__file__).parents[2] / "tests" / "quality"
_LENGTH: Final = 3


@dataclass(frozen=True)
class Article:
    """A text and the sentences that say what it is about: any of them counts.

    Args:
        name: what it is called in the file.
        text: of 12 to 25 sentences.
        language: ISO 639.
        key: these sentences.
        held_out: whether nobody looked at it while choosing how to summarize.
    """

    name: str
    text: str
    language: str
    key: list[str]
    held_out: bool


def articles(file: str = "summaries.json") -> list[Article]:
    """All of a file in tests/quality."""
    return [Article(**one) for one in json.loads((_DATA / file).read_text())]


def summary_of(article: Article, encoder: Encoder) -> Summary:
    """What the function makes of it, which has to find out its language."""
    end = time.monotonic() + 600
    call = Call(job_id="j", attempt=1, soft_at=end, deadline_at=end)
    given = SummarizeInput(text=article.text, sentences=_LENGTH)
    return asyncio.run(summarize.fn(given, call=call, encoder=encoder))


def is_in(article: Article, taken: Sequence[str]) -> bool:
    """Whether one of its key sentences was taken."""
    return any(key in taken for key in article.key)


def is_faithful(article: Article, summary: Summary) -> bool:
    """Whether each of its sentences stands in the text where it says, in this order."""
    places = [(one.start, one.end) for one in summary.sentences]
    return places == sorted(places) and all(
        article.text[one.start : one.end] == one.text for one in summary.sentences
    )


def measure() -> list[str]:
    """A table of how often a key sentence is there, as lines of Markdown."""
    encoder = minilm.load(Device())
    every, fresh = articles(), articles("summaries_fresh.json")
    both = [*every, *fresh]
    halves = [[one for one in every if one.held_out is held_out] for held_out in (False, True)]
    summaries = {one.name: summary_of(one, encoder) for one in both}
    ways: dict[str, Callable[[Article], float]] = {
        "`summarize`": lambda one: is_in(one, [chosen.text for chosen in summaries[one.name].sentences]),
        "the first three sentences": lambda one: is_in(one, _texts(one)[:_LENGTH]),
        "three by chance, on average": _by_chance,
        "plain LexRank": lambda one: is_in(one, _lexrank(_texts(one), encoder)),
    }
    faithful = sum(is_faithful(one, summaries[one.name]) for one in both)
    return [
        f"Summaries of three sentences of {len(both)} articles of {_lengths(both)} sentences, in "
        f"{len({one.language for one in both})} languages: in how many the sentence that was marked as "
        "saying what the article is about is one of the three.",
        "",
        f"| method | tuned on ({len(halves[0])}) | held out ({len(halves[1])}) | all ({len(every)}) "
        f"| fresh ({len(fresh)}) |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {name} | "
            + " | ".join(f"{sum(map(found, some)):.3g}" for some in (*halves, every, fresh))
            + " |"
            for name, found in ways.items()
        ),
        "",
        f"In {faithful} of {len(both)} summaries each sentence stands in the text where the answer says, in "
        "the text's order.",
    ]


def _texts(article: Article) -> list[str]:
    return [article.text[start:end] for start, end in sentences(article.text, article.language)]


def _lengths(every: Sequence[Article]) -> str:
    lengths = [len(_texts(one)) for one in every]
    return f"{min(lengths)} to {max(lengths)}"


def _by_chance(article: Article) -> float:
    """The probability that three sentences drawn at random have a key sentence among them."""
    number = len(_texts(article))
    return 1 - math.comb(number - len(article.key), _LENGTH) / math.comb(number, _LENGTH)


def _lexrank(texts: list[str], encoder: Encoder) -> list[str]:
    """Continuous LexRank with the paper's damping: shares of a walk from sentence to sentence."""
    vectors = np.asarray(encoder.embed(encoder.tokenize(texts)))
    similar = np.maximum(vectors @ vectors.T, 0)
    steps = 0.85 * similar / similar.sum(axis=1, keepdims=True) + 0.15 / len(texts)
    share: NDArray[np.float64] = np.full(len(texts), 1 / len(texts))
    for _ in range(200):
        share = share @ steps
    return [texts[index] for index in np.argsort(-share)[:_LENGTH]]
