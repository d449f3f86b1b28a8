r"""Translates by a model that another server has: Ollama, vLLM, or whatever else speaks OpenAI's protocol.

With Ollama, after `ollama pull llama3.2`:

    TRANSLATE_URL=http://127.0.0.1:11434/v1 TRANSLATE_MODEL=llama3.2 \
      HEADRACE_FUNCTIONS=examples.translate make up

With vLLM, after `vllm serve Qwen/Qwen3-8B --port 8001`:

    TRANSLATE_URL=http://127.0.0.1:8001/v1 TRANSLATE_MODEL=Qwen/Qwen3-8B \
      HEADRACE_FUNCTIONS=examples.translate make up

Then:

    curl -s http://127.0.0.1:8000/fn/translate \
      -H "Authorization: Bearer $(cat .headrace/key)" \
      -H 'Content-Type: application/json' \
      -d '{"text": "The mill has stood still since spring.", "language": "French"}'

A server that asks for a key is given TRANSLATE_KEY. When the client leaves or a limit is reached, the
connection is closed and the server stops: docs/upstreams.md.
"""

from __future__ import annotations

import os

from pydantic import BaseModel, Field

from headrace import Budget, Call, Limits, function
from headrace.upstream import Upstream


def setting(name: str, example: str) -> str:
    """A variable of the environment that must be set: the runner doesn't start without it, and says so."""
    if not (value := os.environ.get(name, "")):
        raise RuntimeError(f"{name} isn't set; for example {name}={example}")
    return value


server = Upstream(
    setting("TRANSLATE_URL", "http://127.0.0.1:11434/v1"),
    model=setting("TRANSLATE_MODEL", "llama3.2"),
    key_setting="TRANSLATE_KEY" if "TRANSLATE_KEY" in os.environ else "",
)


class Text(BaseModel):
    """What to translate."""

    text: str = Field(min_length=1, max_length=20_000)
    language: str = Field(min_length=1, max_length=40, description="The language wanted, by its name.")


class Translation(BaseModel):
    """The text in the other language."""

    text: str
    is_complete: bool = Field(description="False: the server's limit of tokens has cut it off.")


@function(
    concurrency=32,  # as many as the server does at once
    budget=Budget(sync=30, queue=60, soft=110, hard=120),
    limits=Limits(input="128KiB", output="256KiB"),
    examples=[{"text": "Good morning.", "language": "French"}],
)
async def translate(input: Text, *, call: Call) -> Translation:
    """A text in another language."""
    order = f"Translate what the user writes into {input.language}. Answer with the translation only."
    messages = [{"role": "system", "content": order}, {"role": "user", "content": input.text}]
    reply = await server.chat(call, messages, temperature=0)
    return Translation(text=reply.text, is_complete=reply.finish_reason != "length")
