"""`summarize`: the sentences of a text that say the most, or a language model's words about them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from functions._encoder import Encoder, unit
from functions._extractive import best, kept, sections
from functions._passes import TOKENS_PER_PASS, passes
from functions._sentences import Span, has_something_to_read, language_of, sentences, separator
from functions.embed import minilm
from functions.generate import Ask, Message, generate
from headrace.sdk import Budget, Call, Cost, Limits, PermanentError, function, uses

if TYPE_CHECKING:
    from functions._extractive import Vectors

T = TypeVar("T")

MOST_SENTENCES: Final = 1000
"""The most sentences of a summary."""

# What the language model is given to read: 1,300 English words. Each byte is at most one token of its 8,192.
_READ_BYTES: Final = 8000
_MOST_TOKENS: Final = 1024
_TOKENS_A_SENTENCE: Final = 64
_SYSTEM: Final = "You summarize texts. Say only what the text says, in the language of the text."
_NOTICE: Final = (
    "Written by a language model, which may say what the text doesn't. `sentences` are what it read."
)
_CUT_OFF: Final = " It was cut off at its limit."
_READING: Final = 0.9
"""How much of the progress reading is, where a language model writes after it."""

# One thread computes, so that texts which are summarized at once take turns at it, pass by pass: a short one
# doesn't wait for the end of a long one.
_COMPUTING: Final = ThreadPoolExecutor(1, thread_name_prefix="summarize")


def _readable(text: str) -> str:
    if not has_something_to_read(text):
        raise ValueError("there is nothing to read in it")
    return text


def _at_most_one(schema: dict[str, Any]) -> None:
    schema["not"] = {"required": ["sentences", "ratio"]}
    for name in ("ratio", "language"):
        del schema["properties"][name]["default"]  # which only says that it isn't there


class SummarizeInput(BaseModel):
    """A text, and how long its summary should be: `sentences`, or `ratio`."""

    model_config = ConfigDict(json_schema_extra=_at_most_one)

    text: Annotated[str, Field(min_length=1, max_length=1_000_000), AfterValidator(_readable)]
    sentences: Annotated[
        int,
        Field(ge=1, le=MOST_SENTENCES, description="Sentences of the summary; all where there are fewer."),
    ] = 3
    ratio: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            description="In its place: the share of the sentences, at least 1 and at most 1,000 of them.",
        ),
    ] = 1.0
    language: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{1,8})*$",
            max_length=35,
            description="Of the text, as `de` or `pt-BR`: sentences end by its rules. Default: a guess.",
        ),
    ] = ""
    mode: Annotated[
        Literal["extractive", "abstractive"],
        Field(
            description="`extractive`: sentences of the text. `abstractive`: a language model puts what they "
            "say into words of its own, about as many sentences; it may invent, and takes much longer."
        ),
    ] = "extractive"

    @model_validator(mode="after")
    def _has_one_length(self) -> SummarizeInput:
        if {"sentences", "ratio"} <= self.model_fields_set:
            raise ValueError("sentences and ratio can't both be given")
        return self

    def wanted(self, available: int) -> int:
        """How many sentences to take of so many."""
        if "ratio" in self.model_fields_set:
            return min(max(1, round(self.ratio * available)), MOST_SENTENCES)
        return min(self.sentences, available)


class Chosen(BaseModel):
    """A sentence of the text: its characters from `start` up to `end`."""

    text: str
    start: int
    end: int
    index: int = Field(description="Which sentence of the text it is, counted from 0.")


class Usage(BaseModel):
    """What a call used."""

    tokens: int = Field(description="Tokens read, special ones included, and those that were written.")


class Summary(BaseModel):
    """A summary, and the sentences that it consists of or was made from, in the order of the text."""

    summary: str = Field(description="The sentences in one string, or what the language model wrote.")
    sentences: list[Chosen] = Field(description="`abstractive`: what the language model was given to read.")
    mode: Literal["extractive", "abstractive"]
    notice: str | None = Field(description="What to bear in mind where it is not the text's own words.")
    language: str = Field(description="By whose rules the text was cut into sentences.")
    usage: Usage


@function(
    budget=Budget(sync=10, queue=120, soft=840, hard=900),
    limits=Limits(input="12MiB", output="8MiB"),
    concurrency=4,
    cost=Cost.chars("text"),
    examples=[
        {
            "text": "A headrace leads water to a mill. It is a channel of wood or stone. The water drives a "
            "wheel, and the wheel turns the stones that grind the corn. The cat sleeps through all of it.",
            "sentences": 1,
        }
    ],
)
async def summarize(input: SummarizeInput, *, call: Call, encoder: Encoder = uses(minilm)) -> Summary:
    """The sentences of a text that say the most, as they stand there and in its order.

    Each sentence gets a vector of its meaning. Those are taken that are close to many others and to the
    whole, or stand early, and that don't repeat what is taken already; the formula and its sources are in
    `functions/_extractive.py`. Of a text of more than 200 sentences, each section's best are found first, and
    then the best of these. Nothing is written anew, so nothing is invented.

    `mode: abstractive` is different: a language model, `generate`, reads such sentences and writes a summary
    of its own. It is fluent, and may state what the text doesn't.
    """
    language = input.language or language_of(input.text)
    spans = await _in_turn(sentences, input.text, language)
    wanted = input.wanted(len(spans))
    extract = _Extract(input.text, spans, encoder, call, _READING if input.mode == "abstractive" else 1)
    if input.mode == "abstractive":
        return await _abstractive(extract, wanted, language, call)
    chosen = extract.chosen(await extract.best(wanted))
    return Summary(
        summary=separator(language).join(one.text for one in chosen),
        sentences=chosen,
        mode="extractive",
        notice=None,
        language=language,
        usage=Usage(tokens=extract.tokens),
    )


async def _abstractive(extract: _Extract, wanted: int, language: str, call: Call) -> Summary:
    """What a language model writes about as much of the text as it can read."""
    chosen = extract.chosen(await extract.fitting(_READ_BYTES))
    call.progress(_READING, "the language model writes")
    text = separator(language).join(one.text for one in chosen)
    request = f"Summarize this text in {wanted} sentence{'s' if wanted > 1 else ''}:\n\n{text}"
    answer = await call.invoke(
        generate,
        Ask(
            messages=[Message(role="system", content=_SYSTEM), Message(role="user", content=request)],
            max_tokens=min(_MOST_TOKENS, _TOKENS_A_SENTENCE * wanted),
        ),
    )
    if not answer.text.strip():
        raise PermanentError("the language model wrote nothing")
    return Summary(
        summary=answer.text.strip(),
        sentences=chosen,
        mode="abstractive",
        notice=_NOTICE + (_CUT_OFF if answer.finish_reason == "length" else ""),
        language=language,
        usage=Usage(tokens=extract.tokens + answer.usage.tokens),
    )


async def _in_turn(work: Callable[..., T], *arguments: object) -> T:
    return await asyncio.get_running_loop().run_in_executor(_COMPUTING, work, *arguments)


class _Extract:
    """The choice of sentences of one text. Only of those that a section hands on are vectors kept.

    Args:
        text: all of it.
        spans: its sentences.
        encoder: what gives them their vectors.
        call: told how far it is, and asked between passes whether to go on.
        share: how much of the call's progress this is.
    """

    def __init__(self, text: str, spans: Sequence[Span], encoder: Encoder, call: Call, share: float) -> None:
        self._text = text
        self._spans = spans
        self._encoder = encoder
        self._call = call
        self._share = share
        self.tokens = 0
        """What has been read."""

    def chosen(self, indices: Sequence[int]) -> list[Chosen]:
        """These sentences, with their places."""
        return [
            Chosen(text=self._text[start:end], start=start, end=end, index=index)
            for index, (start, end) in ((index, self._spans[index]) for index in indices)
        ]

    async def best(self, wanted: int) -> list[int]:
        """The indices of so many sentences, in their order."""
        return await self._choose(*await self._candidates(wanted), wanted)

    async def fitting(self, size: int) -> list[int]:
        """The indices of as many sentences as fit into so many bytes, in their order: at least one."""
        wanted = len(self._spans)
        sizes = [len(self._text[start:end].encode()) + 1 for start, end in self._spans]
        if sum(sizes) <= size:
            return list(range(wanted))
        wanted = max(1, size * wanted // sum(sizes))
        candidates = await self._candidates(wanted)
        while True:
            taken = await self._choose(*candidates, wanted)
            if wanted == 1 or sum(sizes[index] for index in taken) <= size:
                return taken
            wanted -= max(1, wanted // 10)

    async def _candidates(self, wanted: int) -> tuple[list[int], Vectors]:
        """The sentences that sections hand on, and their vectors."""
        import numpy as np

        parts = list(sections(len(self._spans)))
        handed_on: list[int] = []
        vectors: list[Vectors] = []
        for number, section in enumerate(parts):
            self._call.progress(self._share * number / len(parts), f"section {number + 1} of {len(parts)}")
            embedded = await self._embedded(section)
            rows = list(range(len(section)))
            if len(parts) > 1:
                rows = await _in_turn(best, embedded, section, kept(wanted, len(parts)))
            handed_on += [section[row] for row in rows]
            vectors.append(embedded[rows])
        return handed_on, np.concatenate(vectors)

    async def _choose(self, indices: Sequence[int], vectors: Vectors, wanted: int) -> list[int]:
        self._call.check()
        return [indices[row] for row in await _in_turn(best, vectors, indices, wanted)]

    async def _embedded(self, section: range) -> Vectors:
        """The vectors of a section's sentences."""
        import numpy as np

        texts = [self._text[start:end] for start, end in (self._spans[index] for index in section)]
        tokens = await _in_turn(self._encoder.tokenize, texts)
        self.tokens += sum(map(len, tokens))
        vectors = np.zeros((len(tokens), self._encoder.dimensions), dtype=np.float32)
        for group in passes(tokens, TOKENS_PER_PASS[self._encoder.device.type]):
            self._call.check()
            vectors[group] = await _in_turn(self._one_pass, [tokens[index] for index in group])
        return vectors

    def _one_pass(self, tokens: list[list[int]]) -> Vectors:
        return unit(self._encoder.vectors(tokens)).numpy()
