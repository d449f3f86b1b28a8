"""Quality of `generate`: the library's tokens, the same text by the same seed, and JSON by a schema."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, cast
from unittest import mock

import jsonschema_rs

from functions._language_model import LanguageModel
from functions._model_cache import folder_of
from functions.generate import Answer, Ask, generate, joined, model_path, smollm
from headrace.sdk import Call, Device

_TEXTS: Final = Path(__file__).parents[2] / "tests" / "quality" / "generation.json"
_TOKENS: Final = 64


def measure() -> list[str]:
    """Lines of Markdown: a table of what is the same, and of what is valid."""
    import torch  # noqa: PLC0415 - takes seconds

    texts: dict[str, Any] = json.loads(_TEXTS.read_text())
    with _loaded(torch.float32) as lm:
        lines = _table(lm, texts)
    with _loaded(torch.bfloat16) as lm:
        alone, again, among = _drawn(lm, texts["prompts"])
    repeated, beside = _same(alone, again), _same(alone, among)
    return [
        *lines,
        "",
        f"In bf16, which it computes in where the hardware does, {repeated} of {len(alone)} texts drawn with",
        f"a seed are the same when asked for again, each by itself, and {beside} among seven others.",
    ]


@contextlib.contextmanager
def _loaded(dtype: Any) -> Generator[LanguageModel]:
    with mock.patch("functions.generate.native_dtype", return_value=dtype):
        lm = smollm.load(Device())
    try:
        yield lm
    finally:
        lm.close()


def _drawn(lm: LanguageModel, prompts: list[str]) -> tuple[list[Answer], list[Answer], list[Answer]]:
    """Drawn with a seed: one after the other, once more, and side by side."""
    asked = [{"prompt": one, "max_tokens": _TOKENS, "temperature": 0.8, "seed": 7} for one in prompts]
    alone, again = ([_answers(lm, [one])[0] for one in asked] for _ in range(2))
    return alone, again, _answers(lm, asked)


def _same(some: list[Answer], others: list[Answer]) -> int:
    return sum(one == other for one, other in zip(some, others, strict=True))


def _table(lm: LanguageModel, texts: dict[str, Any]) -> list[str]:
    prompts = texts["prompts"]
    same = sum(
        ours == theirs for ours, theirs in zip(_tokens(lm, prompts), _library(lm, prompts), strict=True)
    )
    alone, _, among = _drawn(lm, prompts)
    drawn = _same(alone, among)
    told, free = (_fitting(lm, texts, is_bound=is_bound) for is_bound in (True, False))
    return [
        "SmolLM2-135M-Instruct in fp32 on a CPU: eight prompts at once, up to 64 tokens each, and eight",
        "sentences of which name, age and city are asked for as JSON. *Right*: each of the three stands in",
        "the sentence. The baseline has the schema in its prompt too, but isn't bound to it; words around",
        "its JSON are left out. Nothing was tuned on these texts, so none is held out.",
        "",
        "| | this | baseline |",
        "| --- | --- | --- |",
        f"| greedy: the tokens of transformers' `generate`, prompt by prompt | {same} of {len(prompts)} | |",
        f"| drawn with a seed: same text alone and among seven others | {drawn} of {len(prompts)} | |",
        f"| JSON that fits the schema | {told[0]} of {told[2]} | {free[0]} of {free[2]} |",
        f"| and is right | {told[1]} of {told[2]} | {free[1]} of {free[2]} |",
    ]


def _tokens(lm: LanguageModel, prompts: list[str]) -> list[list[int]]:
    """Of all prompts, side by side."""

    async def one(prompt: str) -> list[int]:
        steps = lm.generate(lm.read([{"role": "user", "content": prompt}]), _TOKENS)
        return [token async for step in steps for token in step]

    async def every() -> list[list[int]]:
        return await asyncio.gather(*map(one, prompts))

    return asyncio.run(every())


def _library(lm: LanguageModel, prompts: list[str]) -> list[list[int]]:
    """What transformers generates, by a network of its own."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, GenerationConfig  # noqa: PLC0415

    network = cast("Any", AutoModelForCausalLM).from_pretrained(folder_of(model_path()), dtype=torch.float32)
    config = GenerationConfig(do_sample=False, max_new_tokens=_TOKENS, eos_token_id=sorted(lm.stops))
    config.pad_token_id = min(lm.stops)
    found: list[list[int]] = []
    for prompt in prompts:
        tokens = lm.read([{"role": "user", "content": prompt}])
        given = torch.tensor([tokens])
        mask = torch.ones_like(given)
        whole = network.generate(given, attention_mask=mask, generation_config=config)
        found.append(whole[0, len(tokens) :].tolist())
    return found


def _answers(lm: LanguageModel, asked: list[dict[str, Any]]) -> list[Answer]:
    """To all of them, side by side."""

    async def one(fields: dict[str, Any]) -> Answer:
        until = time.monotonic() + 3600
        call = Call(job_id="quality", attempt=1, soft_at=until, deadline_at=until)
        items = cast("Any", generate).fn(Ask.model_validate(fields), call=call, lm=lm)
        return joined([item async for item in items])

    async def every() -> list[Answer]:
        return await asyncio.gather(*map(one, asked))

    return asyncio.run(every())


def _fitting(lm: LanguageModel, texts: dict[str, Any], *, is_bound: bool) -> tuple[int, int, int]:
    """How many answers fit the schema, how many of these are right, and of how many."""
    schema: dict[str, Any] = texts["schema"]
    facts: list[str] = texts["facts"]
    wanted = "Answer with JSON that fits this schema, and nothing else: " + json.dumps(schema)
    bound = {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
    asked = [
        {"prompt": f"{fact}\n{wanted}", "max_tokens": 2 * _TOKENS, **(bound if is_bound else {})}
        for fact in facts
    ]
    fit = right = 0
    for fact, answer in zip(facts, _answers(lm, asked), strict=True):
        try:
            # Also where it stands among words, as in the baseline's fences.
            value = json.loads(answer.text[answer.text.find("{") : answer.text.rfind("}") + 1])
        except ValueError:
            continue
        if jsonschema_rs.is_valid(schema, value):
            fit += 1
            right += all(str(value[key]) and str(value[key]) in fact for key in ("name", "age", "city"))
    return fit, right, len(facts)


if __name__ == "__main__":
    print("\n".join(measure()))
