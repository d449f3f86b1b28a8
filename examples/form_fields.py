r"""Fills a form from a text, by three other functions of the site: `extract`, `embed` and `generate`.

    HEADRACE_FUNCTIONS=examples.form_fields,functions make up

    curl -s http://127.0.0.1:8000/fn/form_fields \
      -H "Authorization: Bearer $(cat .headrace/key)" \
      -H 'Content-Type: application/json' \
      -d '{"text": "Ada Lovelace arrives in Berlin on 5 June, leaves on 9 June, and pays $240.",
           "fields": ["name of the guest", "city", "date of arrival", "price", "percentage"]}'

The first call waits for models, and is answered 202 with the address of a job if that takes long: `generate`
converts its own once. What is called are jobs of the same owner, within the same deadline, and cancelled with
this call; started again, it has the answers that it already got. Every value stands in the text: where
several would do, the language model may only choose, of the first ten, after the first 4,000 bytes of the
text: more may be beyond its context. The one that comes with Headrace is small, often wrong.
"""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Final, cast

from pydantic import BaseModel, Field

from functions.embed import EmbedInput, embed
from functions.extract import Entity, Label, extract
from functions.extract import Texts as Extracted
from functions.generate import Ask, ResponseFormat, generate
from headrace import Budget, Call, Limits, function

# What a field may ask for, in words that are compared with the field's.
KINDS: Final[dict[Label, str]] = {
    "PERSON": "name of a person",
    "ORG": "name of a company or organisation",
    "GPE": "city or country, a place",
    "DATE": "date, day or year",
    "TIME": "time of day, hour",
    "MONEY": "price, an amount of money",
    "PERCENT": "percentage, a rate",
    "CARDINAL": "number, how many",
    "QUANTITY": "measure, as a weight or a length",
}

# All that the model reads and writes stays below the 8,192 tokens of the one that comes with Headrace, also
# where each byte is one.
MOST_BYTES: Final = 4_000
MOST_VALUES: Final = 10
LONGEST_VALUE: Final = 60
MOST_TOKENS: Final = 400  # of JSON with such a value, also where it has to be escaped


class Form(BaseModel):
    """A text, and what is asked of it."""

    text: Annotated[str, Field(min_length=1, max_length=8_000)]
    fields: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=100)]], Field(min_length=1, max_length=20)
    ]


class Filled(BaseModel):
    """A field, and what the text says; null: nothing of that kind."""

    field: str
    kind: Label
    value: str | None


@function(
    concurrency=4,
    budget=Budget(sync=50, queue=60, soft=230, hard=240),  # models that it waits for may have to be loaded
    attempts=3,
    limits=Limits(input="64KiB", output="64KiB"),
    examples=[{"text": "Ada pays $240.", "fields": ["name", "price"]}],
)
async def form_fields(input: Form, *, call: Call) -> list[Filled]:
    """The fields of a form, filled from a text."""
    call.progress(0, "reading")
    entities, vectors = await asyncio.gather(
        call.invoke(extract, Extracted(texts=[input.text], labels=list(KINDS))),
        call.invoke(embed, EmbedInput(texts=[*KINDS.values(), *input.fields])),
    )
    kinds = nearest(cast("list[list[float]]", vectors.vectors))
    filled: list[Filled] = []
    for at, (field, kind) in enumerate(zip(input.fields, kinds, strict=True)):
        call.progress((1 + at) / (1 + len(kinds)), field)
        value = await chosen(call, input.text, field, of_kind(entities.entities[0], kind))
        filled.append(Filled(field=field, kind=kind, value=value))
    return filled


def nearest(vectors: list[list[float]]) -> list[Label]:
    """For each field the kind whose words are closest in meaning; all have unit length."""
    labels, described, fields = list(KINDS), vectors[: len(KINDS)], vectors[len(KINDS) :]
    scores = [[sum(a * b for a, b in zip(field, one, strict=True)) for one in described] for field in fields]
    return [labels[row.index(max(row))] for row in scores]


def of_kind(entities: list[Entity], kind: Label) -> list[str]:
    """The texts of that kind, each once."""
    return list(dict.fromkeys(one.text for one in entities if one.label == kind))


async def chosen(call: Call, text: str, field: str, values: list[str]) -> str | None:
    """The value for a field: the model is asked where there are several, and can answer nothing else."""
    if len(values) < 2:
        return values[0] if values else None
    values = [one for one in values if len(one) <= LONGEST_VALUE][:MOST_VALUES] or values[:1]
    if len(values) == 1:
        return values[0]
    start = text.encode()[:MOST_BYTES].decode(errors="ignore")
    choice = {"type": "json_schema", "json_schema": {"schema": {"type": "string", "enum": values}}}
    answer = await call.invoke(
        generate,
        Ask(
            prompt=f"{start}\n\nWhich of these is the {field}: {', '.join(values)}?",
            max_tokens=MOST_TOKENS,
            response_format=ResponseFormat.model_validate(choice),
        ),
    )
    if answer.finish_reason != "stop":  # cut, as another model's context may be shorter
        return values[0]
    return json.loads(answer.text)
