"""`generate`: the answer in a conversation, by SmolLM2-135M-Instruct or another language model on disk."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.json_schema import SkipJsonSchema

from functions import _model_cache
from functions._grammar import ANY_OBJECT, SCHEMA_BYTES, Grammar
from functions._hardware import native_dtype
from functions._language_model import AT_ONCE, LanguageModel
from functions._llama import use_ours
from functions._model_cache import folder_of
from functions._pieces import Pieces
from functions._sampling import Choice
from functions._stops import PiecesUntil
from headrace import InvalidInput
from headrace.sdk import Budget, Call, Device, Limits, function, model, uses

MODEL_SETTING: Final = "HEADRACE_GENERATE_MODEL"
"""The environment variable that names another model: a folder, a GGUF file, or `organisation/name@commit`."""


class Message(BaseModel):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Field(min_length=1, max_length=65_536)]


def _without_default(schema: dict[str, Any]) -> None:
    del schema["default"]  # which only says that it isn't there


class JsonSchema(BaseModel):
    """What the answer is to be."""

    name: str = Field(default="", max_length=64, description="Not used.")
    strict: bool = Field(default=True, description="Not used: the answer always fits the schema.")
    # `schema` is taken in pydantic's classes.
    as_given: Annotated[
        dict[str, Any],
        Field(alias="schema", description=f"A JSON Schema, of {SCHEMA_BYTES} bytes of JSON at most."),
    ]


class ResponseFormat(BaseModel):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"] = Field(
        description="`json_object`: any JSON object; `json_schema`: JSON that fits the schema."
    )
    json_schema: JsonSchema | SkipJsonSchema[None] = Field(default=None, json_schema_extra=_without_default)

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema must be given with the type json_schema, and with no other")
        return self


StopText = Annotated[str, Field(min_length=1, max_length=128)]

# Of one piece, unlike pydantic's: so that an error says what is wrong, and in which of them.
_STOP_SCHEMA: Final[dict[str, Any]] = {
    "type": ["string", "array"],
    "minLength": 1,
    "maxLength": 128,
    "maxItems": 16,
    "items": {"type": "string", "minLength": 1, "maxLength": 128},
}


def _either(schema: dict[str, Any]) -> None:
    schema["oneOf"] = [{"required": ["messages"]}, {"required": ["prompt"]}]
    for name in ("messages", "prompt"):
        del schema["properties"][name]["default"]  # which only says that it isn't there


class Ask(BaseModel):
    """What to answer: `messages`, or `prompt`."""

    model_config = ConfigDict(json_schema_extra=_either)

    messages: Annotated[
        list[Message],
        Field(min_length=1, max_length=256, description="A conversation, the oldest turn first."),
    ] = []
    prompt: Annotated[
        str, Field(min_length=1, max_length=65_536, description="The same as one message of the role user.")
    ] = ""
    max_tokens: Annotated[
        int,
        Field(ge=1, le=4096, description="The most tokens that are generated; fewer where the context ends."),
    ] = 256
    temperature: Annotated[
        float,
        Field(
            ge=0,
            le=2,
            allow_inf_nan=False,
            description="0: each token is the most likely one; else it is drawn, the more freely the higher.",
        ),
    ] = 0.0
    top_p: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            allow_inf_nan=False,
            description="Drawn is from the most likely tokens that have this much of the probability.",
        ),
    ] = 1.0
    seed: Annotated[
        Annotated[int, Field(ge=0, le=2**63 - 1)] | SkipJsonSchema[None],
        Field(
            description="The same seed draws the same; none draws anew each time.",
            json_schema_extra=_without_default,
        ),
    ] = None
    stop: Annotated[
        StopText | Annotated[list[StopText], Field(max_length=16)],
        WithJsonSchema(_STOP_SCHEMA),
        Field(description="Texts that end the answer before them."),
    ] = []
    response_format: Annotated[
        ResponseFormat,
        Field(
            description="Whether the answer is to be JSON; text unless said.",
            json_schema_extra={"default": {"type": "text"}},
        ),
    ] = ResponseFormat(type="text")

    @model_validator(mode="after")
    def _has_one(self) -> Ask:
        if len({"messages", "prompt"} & self.model_fields_set) != 1:
            raise ValueError("exactly one of messages and prompt must be given")
        return self


class Usage(BaseModel):
    """What a call used."""

    prompt_tokens: int = Field(description="Tokens of the conversation, what marks its turns included.")
    completion_tokens: int = Field(description="Tokens generated, the one that ends the answer included.")
    tokens: int = Field(description="Both together.")


FinishReason = Literal["stop", "length"]


class Piece(BaseModel):
    """Text that was added."""

    text: str
    tokens: int = Field(description="Tokens generated so far.")


class End(BaseModel):
    """The last item: why the text ends here."""

    text: Literal[""] = ""
    finish_reason: FinishReason = Field(
        description="`stop`: the model or a stop text ended it; `length`: `max_tokens` or the context did."
    )
    usage: Usage


class Answer(BaseModel):
    """The whole text."""

    text: str
    finish_reason: FinishReason
    usage: Usage


@model(keep_alive=600, memory="800MiB")
def smollm(device: Device) -> LanguageModel:
    """The language model, warm; loaded at its first use, as many sites never ask for it."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # no hub is ever asked, whatever the folder says
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # a runner's standard error is its log
    folder = folder_of(model_path())
    tokenizer = cast("Any", AutoTokenizer).from_pretrained(folder, local_files_only=True)
    network = cast("Any", AutoModelForCausalLM).from_pretrained(
        folder, dtype=native_dtype(device), local_files_only=True
    )
    network = network.to(torch.device(str(device)))
    use_ours(network)
    loaded = LanguageModel(network, tokenizer)
    loaded.warm_up()
    return loaded


def joined(items: list[Piece | End]) -> Answer:
    """The whole answer."""
    end = items[-1]
    assert isinstance(end, End)
    return Answer(text="".join(item.text for item in items), finish_reason=end.finish_reason, usage=end.usage)


@function(
    budget=Budget(sync=50, queue=60, soft=280, hard=300),
    limits=Limits(input="256KiB", output="1MiB"),
    concurrency=AT_ONCE,
    collect=joined,
    examples=[
        {"prompt": "What does a water mill do?", "max_tokens": 64},
        {
            "messages": [
                {"role": "system", "content": "You answer in one sentence."},
                {"role": "user", "content": "What is a headrace?"},
            ]
        },
        {
            "prompt": "Invent a water mill: its name, and the year it was built.",
            "temperature": 0.8,
            "top_p": 0.95,
            "seed": 7,
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "schema": {
                        "type": "object",
                        "properties": {
                            "name": {"type": "string", "maxLength": 40},
                            "year": {"type": "integer", "minimum": 1200, "maximum": 1900},
                        },
                        "required": ["name", "year"],
                        "additionalProperties": False,
                    }
                },
            },
        },
    ],
)
async def generate(input: Ask, *, call: Call, lm: LanguageModel = uses(smollm)) -> AsyncIterator[Piece | End]:
    """A language model's answer, piece by piece; at each step the most likely token, or one that is drawn.

    The model that comes with Headrace is a small one: it writes fluently, and knows little.
    """
    messages = input.messages or [Message(role="user", content=input.prompt)]
    field = "/messages" if input.messages else "/prompt"
    # A long one takes a while, in which others' answers go on.
    prompt = await asyncio.to_thread(lm.read, [message.model_dump() for message in messages], field)
    grammar = await _grammar(input.response_format, lm)
    choice = Choice(input.temperature, input.top_p, input.seed, grammar)
    pieces = PiecesUntil(Pieces(lm.tokenizer), [input.stop] if isinstance(input.stop, str) else input.stop)
    last = -1
    async with aclosing(lm.generate(prompt, input.max_tokens, choice)) as steps:
        async for tokens in steps:
            call.check()
            last = tokens[-1]
            if text := pieces.add(tokens):
                yield Piece(text=text, tokens=pieces.tokens)
            if pieces.has_stopped:
                break
    if grammar is not None and grammar.error is not None:
        raise InvalidInput(f"the schema is too complex: {grammar.error}", path="/response_format")
    if text := pieces.end():
        yield Piece(text=text, tokens=pieces.tokens)
    count = pieces.tokens
    yield End(
        finish_reason="stop" if pieces.has_stopped or last in lm.stops else "length",
        usage=Usage(prompt_tokens=len(prompt), completion_tokens=count, tokens=len(prompt) + count),
    )


async def _grammar(wanted: ResponseFormat, lm: LanguageModel) -> Grammar | None:
    """What the answer has to follow; raises as `Grammars.of`."""
    if wanted.type == "text":
        return None
    schema = ANY_OBJECT if wanted.json_schema is None else wanted.json_schema.as_given
    try:
        return await lm.grammars.of(schema)
    except InvalidInput as error:
        field = "/response_format" if wanted.json_schema is None else "/response_format/json_schema/schema"
        raise InvalidInput(error.message, path=field) from None


def model_path() -> Path:
    """Where the configured model is, or the one that comes with Headrace; raises as `_model_cache` does."""
    return _model_cache.model_path("generate", MODEL_SETTING)
