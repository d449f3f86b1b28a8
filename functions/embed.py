"""`embed`: texts to vectors, by all-MiniLM-L6-v2 or another sentence encoder on disk."""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, cast

from pydantic import BaseModel, Field, StrictBool, StrictInt

from functions._bert import norms_in_fp32
from functions._encoder import Encoder, Reading, numbers, unit
from functions._hardware import native_dtype
from functions._model_cache import model_path
from functions._passes import TOKENS_PER_PASS, passes
from headrace.sdk import (
    FOREVER,
    Batch,
    Budget,
    Call,
    Cost,
    Device,
    InvalidInput,
    Limits,
    function,
    model,
    uses,
)

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

MODEL_SETTING: Final = "HEADRACE_EMBED_MODEL"
"""The environment variable that names another encoder: a folder, or `organisation/name@commit`."""

_DEFAULT_NAME: Final = "all-MiniLM-L6-v2"

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
    normalize: Annotated[
        StrictBool,
        Field(
            description="Whether vectors have unit length, so that their dot product is the cosine "
            "similarity. If not, they are as the model gives them: the default one gives unit length itself."
        ),
    ] = True
    dimensions: Annotated[
        StrictInt | None,
        Field(
            ge=1,
            description="So many numbers of each vector, the first ones, at most as many as the model has; "
            "null: all. With `normalize` they are brought to unit length after that.",
        ),
    ] = None
    encoding_format: Annotated[
        Literal["float", "base64"],
        Field(description="`base64`: each vector as little-endian 32-bit floats, in base64."),
    ] = "float"


class Usage(BaseModel):
    """What a call used."""

    tokens: int = Field(description="Tokens read, special ones included.")


class Truncated(BaseModel):
    """A text that has more tokens than the model reads: its end has no influence on its vector."""

    index: int = Field(description="Which of the texts, from 0.")
    tokens: int = Field(description="How many tokens it has, special ones included.")
    read: int = Field(description="How many of them were read, the first ones.")


class EmbedOutput(BaseModel):
    """Vectors in the order of the texts."""

    vectors: Annotated[
        list[list[float]] | list[str],
        Field(union_mode="left_to_right", description="As `encoding_format` says."),
    ]
    truncated: list[Truncated] = Field(description="The texts that were not read to their end.")
    model: str = Field(description="What made the vectors. Those of different models can't be compared.")
    usage: Usage


class _Form(NamedTuple):
    """How a call wants its vectors."""

    normalize: bool
    dimensions: int | None
    encoding_format: str


@model(keep_alive=FOREVER, memory="400MiB")
def minilm(device: Device) -> Encoder:
    """The sentence encoder, warm: its first pass takes ten times as long as others."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # no hub is ever asked, whatever the folder says
    from sentence_transformers import SentenceTransformer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # a runner's standard error is its log
    with norms_in_fp32() if device.kind == "cpu" else nullcontext():
        library = SentenceTransformer(
            str(model_path("embed", MODEL_SETTING)),
            device=str(device),
            model_kwargs={"dtype": native_dtype(device)},
            local_files_only=True,
        )
    encoder = Encoder(library, os.environ.get(MODEL_SETTING) or _DEFAULT_NAME)
    encoder.embed(encoder.tokenize(["The first pass is made before anybody waits for it."]))
    log.info(
        "embed: %s, %d dimensions, reads %s tokens, in %s",
        *(encoder.name, encoder.dimensions, encoder.max_tokens, library.dtype),
    )
    return encoder


@function(
    batch=_BATCH,
    cost=_COST,
    budget=Budget(sync=10, queue=60, soft=50, hard=60),
    limits=Limits(input="1MiB", output="32MiB"),
    examples=[{"texts": ["A headrace leads water to a turbine.", "The turbine drives a generator."]}],
)
def embed(
    inputs: list[EmbedInput], *, calls: list[Call], encoder: Encoder = uses(minilm)
) -> list[EmbedOutput | InvalidInput]:
    """Sentence embeddings: texts with similar meanings get similar vectors.

    Of each text the model reads so many tokens, the default one 256, about 200 English words; what follows
    has no influence, and `truncated` names each such text.
    """
    refused = [_refusal(one, encoder) for one in inputs]
    taken = [(one, call) for one, call, error in zip(inputs, calls, refused, strict=True) if error is None]
    reading = encoder.read([text for one, _ in taken for text in one.texts])
    tokens = reading.tokens
    owners = [call for one, call in taken for _ in one.texts]
    forms = [_form(one) for one, _ in taken for _ in one.texts]
    vectors: list[Any] = ["" if form.encoding_format == "base64" else [] for form in forms]
    for group in passes(tokens, TOKENS_PER_PASS[encoder.device.type]):
        calls[0].check()
        wanted = [index for index in group if not owners[index].is_stopped]
        if wanted:
            made = encoder.vectors([tokens[index] for index in wanted])
            formed = _formed(made, [forms[index] for index in wanted])
            for index, vector in zip(wanted, formed, strict=True):
                vectors[index] = vector
    outputs = iter(_outputs([one for one, _ in taken], reading, vectors, encoder.name))
    return [next(outputs) if error is None else error for error in refused]


def _refusal(one: EmbedInput, encoder: Encoder) -> InvalidInput | None:
    if one.dimensions is None or one.dimensions <= encoder.dimensions:
        return None
    return InvalidInput(
        f"{one.dimensions} dimensions are asked for, and the vectors of {encoder.name} have "
        f"{encoder.dimensions}",
        path="/dimensions",
    )


def _form(one: EmbedInput) -> _Form:
    return _Form(one.normalize, one.dimensions, one.encoding_format)


def _formed(made: torch.Tensor, forms: Sequence[_Form]) -> list[Any]:
    """The vectors of one pass, each as its call wants it; all at once where they want the same."""
    if len(set(forms)) == 1:
        return _in_form(made, forms[0])
    formed: list[Any] = [None] * len(forms)
    for form in set(forms):
        mine = [index for index, one in enumerate(forms) if one == form]
        for index, vector in zip(mine, _in_form(made[mine], form), strict=True):
            formed[index] = vector
    return formed


def _in_form(made: torch.Tensor, form: _Form) -> list[list[float]] | list[str]:
    vectors = made if form.dimensions is None else made[:, : form.dimensions]
    if form.normalize:
        vectors = unit(vectors)
    if form.encoding_format == "float":
        return numbers(vectors)
    rows = cast(Any, vectors.numpy()).astype("<f4")
    return [base64.b64encode(row.tobytes()).decode() for row in rows]


def _outputs(
    inputs: list[EmbedInput], reading: Reading, vectors: list[Any], name: str
) -> Iterator[EmbedOutput]:
    """Each call's part of what was embedded together."""
    at = 0
    for one in inputs:
        end = at + len(one.texts)
        lengths = [len(tokens) for tokens in reading.tokens[at:end]]
        truncated = [
            Truncated(index=index - at, tokens=reading.whole[index], read=lengths[index - at])
            for index in (range(at, end) if reading.whole else ())
            if index in reading.whole
        ]
        usage = Usage(tokens=sum(lengths))
        yield EmbedOutput(vectors=vectors[at:end], truncated=truncated, model=name, usage=usage)
        at = end
