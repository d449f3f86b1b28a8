"""Every shape of function that the SDK types, as its authors write it. Checked, never run."""

# ruff: noqa: PLC0415 - loaders import what is heavy

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, assert_type

from pydantic import BaseModel

from headrace import FOREVER, Batch, Budget, Call, Cost, Device, Function, Limits, function, model, uses
from headrace.sdk import Model

if TYPE_CHECKING:
    from jinja2 import Environment  # stands for a heavy library: at run time, only loaders import it


class Pair(BaseModel):
    left: str
    right: str


@dataclass
class Score:
    value: float


class Ask(TypedDict):
    prompt: str


class Token(BaseModel):
    text: str


class Answer(BaseModel):
    text: str


class LM:
    def tokens(self, prompt: str) -> list[str]:
        return prompt.split()


@model(keep_alive=FOREVER, memory="400MiB")
def prompts(device: Device) -> Environment:
    from jinja2 import Environment

    return Environment(autoescape=device.kind == "cpu")


@model(keep_alive=300)
def smollm(device: Device) -> LM:
    return LM()


assert_type(smollm, Model[LM])
assert_type(smollm.load(Device()), LM)


@function(
    budget=Budget(sync=10, queue=60, soft=20, hard=30, margin=15),
    limits=Limits(input="1MiB", output="16MiB"),
    attempts=2,
)
def score(input: Pair, *, templates: Environment = uses(prompts)) -> Score:
    return Score(float(len(templates.from_string(input.left).render())))


assert_type(score, Function[Pair, Score])
assert_type(score.decode(b"{}"), Pair)
assert_type(score.encode(Score(1.0)), bytes)


@function()
def plain(input: Ask) -> list[int]:
    return [len(input["prompt"])]


assert_type(plain, Function[Ask, list[int]])


@function(concurrency=64)
async def translate(input: Ask, *, call: Call) -> Answer:
    call.progress(0.5, "half")
    return Answer(text=input["prompt"])


assert_type(translate, Function[Ask, Answer])


@function(batch=Batch(max_cost=64, max_wait=0.005), cost=Cost.items("left") + Cost.chars("right"))
def batched(
    inputs: list[Pair], *, calls: list[Call], templates: Environment = uses(prompts)
) -> list[Score | Exception]:
    return [ValueError() if call.attempt > 1 else Score(1.0) for call in calls]


assert_type(batched, Function[Pair, Score])


@function(batch=Batch(max_cost=8))
async def batched_async(inputs: list[Pair], *, calls: list[Call]) -> list[Score]:
    return [Score(1.0) for _ in inputs]


assert_type(batched_async, Function[Pair, Score])


@function(batch=Batch(max_cost=8))
def batched_sequence(inputs: list[Pair]) -> Sequence[Score | Exception]:
    return (Score(1.0), *(ValueError() for _ in inputs[1:]))


assert_type(batched_sequence, Function[Pair, Score])


def join(tokens: list[Token]) -> Answer:
    return Answer(text="".join(token.text for token in tokens))


def join_any(tokens: Sequence[Token]) -> Answer:
    return join(list(tokens))


@function(collect=join)
def generate(input: Ask, *, call: Call, lm: LM = uses(smollm)) -> Iterator[Token]:
    for text in lm.tokens(input["prompt"]):
        call.check()
        yield Token(text=text)


assert_type(generate, Function[Ask, Answer])


@function(collect=join_any)
async def generate_async(input: Ask) -> AsyncIterator[Token]:
    yield Token(text=input["prompt"])


assert_type(generate_async, Function[Ask, Answer])


@function(collect=list)
def words(input: Ask) -> Iterator[str]:
    yield from input["prompt"].split()


assert_type(words, Function[Ask, list[str]])


@function(pool="default", name="the-pipeline", examples=[{"prompt": "hello"}])
async def pipeline(input: Ask, *, call: Call) -> Answer:
    answer = await call.invoke(generate, input)
    assert_type(answer, Answer)
    return answer


assert_type(pipeline, Function[Ask, Answer])
