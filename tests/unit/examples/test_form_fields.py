"""What form_fields asks its language model, and what it makes of the answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from examples.form_fields import LONGEST_VALUE, MOST_BYTES, MOST_VALUES, chosen
from functions._grammar import as_json
from functions.generate import Answer, Ask, Usage
from headrace import Call

CONTEXT = 8_192  # tokens; each is a byte at least


class Model:
    """Stands for the call, and answers as `generate` would."""

    def __init__(self, text: str, finish_reason: str = "stop") -> None:
        self.answer = Answer(
            text=text,
            finish_reason=cast("Any", finish_reason),
            usage=Usage(prompt_tokens=1, completion_tokens=1, tokens=2),
        )
        self.asked: list[Ask] = []

    async def invoke(self, _function: Any, ask: Ask) -> Answer:
        self.asked.append(ask)
        return self.answer


def choice(model: Model, values: list[str], text: str = "a text", field: str = "city") -> str | None:
    return asyncio.run(chosen(cast("Call", model), text, field, values))


@pytest.mark.parametrize(
    ("values", "value"), [([], None), (["a"], "a"), (["b" * 99, "a"], "a"), (["b" * 99, "c" * 99], "b" * 99)]
)
def test_where_there_is_no_choice_nobody_is_asked(values, value):
    model = Model('"x"')
    assert choice(model, values) == value
    assert model.asked == []


@pytest.mark.parametrize("letter", ["a", "\u6c34", "\U0001f642", "\x01"])
def test_the_longest_text_and_values_fit_the_model(letter):
    values = [letter * (LONGEST_VALUE - 1) + chr(65 + n) for n in range(26)]
    model = Model(json.dumps(values[3]))
    assert choice(model, values, text=letter * 8_000, field=letter * 100) == values[3]
    (ask,) = model.asked
    assert ask.response_format is not None
    declared = ask.response_format.json_schema
    assert declared is not None
    assert declared.as_given["enum"] == values[:MOST_VALUES]
    as_json(declared.as_given)  # isn't too large
    assert len(letter) * 8_000 > MOST_BYTES
    assert len(ask.prompt.encode()) + ask.max_tokens + 100 <= CONTEXT
    assert all(len(json.dumps(one, ensure_ascii=False).encode()) <= ask.max_tokens for one in values)


def test_an_answer_that_is_cut_chooses_nothing():
    assert choice(Model('"Ber', "length"), ["Rome", "Berlin"]) == "Rome"
