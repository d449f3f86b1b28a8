"""The other half of `built_ins.py`: what each function does, in one process with no platform around it.

    python loadtests/built_ins_work.py NAME THREADS

A line with seconds in, a line with the figures out.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from batching import texts

ARTICLE: Final = 15
"""Sentences of an article."""

_AT_A_TIME: Final = 256
_MARKED: Final = Path(__file__).parents[1] / "tests" / "quality" / "entities.json"


class Alone(NamedTuple):
    """Of one round.

    Args:
        rate: calls per second that would give as much.
        cpu_ms: CPU time for each.
        way: which of the library's ways of use it was: the best one.
    """

    rate: float
    cpu_ms: float
    way: str


class Way(NamedTuple):
    """A way to use a library.

    Args:
        name: what sets it apart.
        use: does what so many calls ask for, and returns how many.
    """

    name: str
    use: Callable[[], int]


def sentences() -> list[str]:
    """What `extract` is given: sentences of 60 characters on average, with names, dates and amounts."""
    return [one["text"] for one in json.loads(_MARKED.read_text())]


def articles() -> list[str]:
    """What `summarize` is given: texts of 15 sentences of 15 to 27 words."""
    words, choose = texts(), random.Random(2)
    return [
        " ".join(f"{words[at].capitalize()} again." for at in choose.sample(range(len(words)), ARTICLE))
        for _ in range(200)
    ]


def embed() -> list[Way]:
    """`SentenceTransformer.encode`, in batches of 8, 32 and 64."""
    from functions.embed import minilm  # noqa: PLC0415 - each process needs one library
    from headrace.sdk import Device  # noqa: PLC0415

    encoder = cast(Any, minilm.load(Device("cpu")).library)
    given = texts()[:_AT_A_TIME]

    def encode(size: int) -> int:
        encoder.encode(given, batch_size=size)
        return len(given)

    return [Way(f"`encode`, batches of {size}", lambda size=size: encode(size)) for size in (8, 32, 64)]


def extract() -> list[Way]:
    """`nlp.pipe`, in batches of 32."""
    from functions.extract import recogniser  # noqa: PLC0415 - each process needs one library
    from headrace.sdk import Device  # noqa: PLC0415

    nlp = cast(Any, recogniser.load(Device("cpu")))
    given = (sentences() * 8)[:_AT_A_TIME]

    def pipe() -> int:
        with nlp.memory_zone():
            return sum(doc.ents is not None for doc in nlp.pipe(given, batch_size=32))

    return [Way("`nlp.pipe`, batches of 32", pipe)]


def summarize() -> list[Way]:
    """There is no library: the function's own steps, one text after the other."""
    import numpy as np  # noqa: PLC0415 - each process needs one library

    from functions._encoder import unit  # noqa: PLC0415
    from functions._extractive import best  # noqa: PLC0415
    from functions._passes import TOKENS_PER_PASS, passes  # noqa: PLC0415
    from functions._sentences import language_of  # noqa: PLC0415
    from functions._sentences import sentences as cut  # noqa: PLC0415
    from functions.embed import minilm  # noqa: PLC0415
    from headrace.sdk import Device  # noqa: PLC0415

    encoder = minilm.load(Device("cpu"))
    given = articles()[:16]

    def one(text: str) -> list[str]:
        spans = cut(text, language_of(text))
        tokens = encoder.tokenize([text[start:end] for start, end in spans])
        vectors = np.zeros((len(tokens), encoder.dimensions), dtype=np.float32)
        for group in passes(tokens, TOKENS_PER_PASS["cpu"]):
            vectors[group] = unit(encoder.vectors([tokens[index] for index in group])).numpy()
        return [text[slice(*spans[row])] for row in best(vectors, range(len(spans)), 3)]

    def every() -> int:
        return sum(bool(one(text)) for text in given)

    return [Way("its own steps, one text after the other", every)]


def measure(way: Way, seconds: float) -> Alone:
    """How fast it goes."""
    done, began, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() < began + seconds:
        done += way.use()
    return Alone(done / (time.perf_counter() - began), (time.process_time() - cpu) / done * 1000, way.name)


_WAYS: Final = {"embed": embed, "extract": extract, "summarize": summarize}


def main() -> None:
    """Load, and run a round for each line."""
    import torch  # noqa: PLC0415 - not where only the texts are wanted

    ways = _WAYS[sys.argv[1]]()
    torch.set_num_threads(int(sys.argv[2]))  # after the model, which sets its own
    for way in ways:
        way.use()
    print("ready", flush=True)
    for line in sys.stdin:
        found = [measure(way, float(line) / len(ways)) for way in ways]
        print(json.dumps(max(found)), flush=True)


if __name__ == "__main__":
    main()
