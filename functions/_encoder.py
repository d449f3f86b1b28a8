"""A sentence encoder whose forward pass leaves padding out where that pays."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from functions._abreast import Abreast
from functions._bert import Bert, Texts, is_bert

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from sentence_transformers import SentenceTransformer

# A vector's numbers are precise to seven digits or so; writing more than that doubles the answer's size.
_DECIMALS: Final = 8


class Reading(NamedTuple):
    """Texts as tokens.

    Args:
        tokens: of each text, special ones included, cut at the encoder's limit.
        whole: how many tokens there are in each text that was cut, by its index.
    """

    tokens: list[list[int]]
    whole: dict[int, int]


class Encoder:
    """Texts to tokens, tokens to vectors.

    Args:
        library: the encoder as its library loaded it. It is not changed.
        name: what it is called.

    Raises:
        ValueError: it isn't one that takes texts as they are.
    """

    def __init__(self, library: SentenceTransformer, name: str = "") -> None:
        self.library = library
        self.name = name
        self._is_static = type(library[0]).__name__ == "StaticEmbedding"
        self._is_unit = type(list(cast("Any", library))[-1]).__name__ == "Normalize"
        self._in_one_row = _in_one_row(library)
        self._abreast = Abreast() if self._in_one_row is not None else None
        self._read = _reader(library)
        self.dimensions: int = library.get_embedding_dimension() or self._measured()
        """How many numbers a vector has."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.library.device

    @property
    def max_tokens(self) -> float:
        """How much is read of a text; infinite where there is no limit."""
        return self.library.max_seq_length or math.inf

    def read(self, texts: list[str]) -> Reading:
        """Texts as tokens, and which of them are cut."""
        return self._read(texts)

    def tokenize(self, texts: list[str]) -> list[list[int]]:
        """Each text's tokens, special ones included, cut at the encoder's limit."""
        return self._read(texts).tokens

    def embed(self, tokens: list[list[int]]) -> list[list[float]]:
        """One forward pass, to vectors of unit length."""
        return numbers(unit(self.vectors(tokens)))

    def vectors(self, tokens: list[list[int]]) -> torch.Tensor:
        """One forward pass, to vectors as the model gives them: a row each, in fp32, on the CPU.

        Where the model gives unit length, that is settled in fp32: in bf16 it is off by 0.002.
        """
        import torch

        with torch.inference_mode():
            # A text without any token has no place in a row, nor anything to attend to.
            is_plain = self._in_one_row is not None and all(tokens)
            embedded = (self._in_parts(tokens) if is_plain else self._padded(tokens)).float()
            if self.library.truncate_dim is not None:
                embedded = embedded[:, : self.library.truncate_dim]
            return (unit(embedded) if self._is_unit else embedded).cpu()

    def _padded(self, tokens: list[list[int]]) -> torch.Tensor:
        if self._is_static:
            return self._side_by_side(tokens)
        padded = self.library.tokenizer.pad({"input_ids": tokens}, return_tensors="pt")
        return cast("Any", self.library)(dict(padded.to(self.device)))["sentence_embedding"]

    def _side_by_side(self, tokens: list[list[int]]) -> torch.Tensor:
        """For an encoder that looks its tokens up, and wants them in one row with the place of each text."""
        import torch

        starts = [0]
        for one in tokens[:-1]:
            starts.append(starts[-1] + len(one))
        features = {
            "input_ids": torch.tensor([token for one in tokens for token in one], dtype=torch.long),
            "offsets": torch.tensor(starts, dtype=torch.long),
        }
        on_device = {name: tensor.to(self.device) for name, tensor in features.items()}
        return cast("Any", self.library)(on_device)["sentence_embedding"]

    def _in_parts(self, tokens: list[list[int]]) -> torch.Tensor:
        import torch

        abreast = cast("Abreast", self._abreast)
        parts = abreast.parts([len(one) for one in tokens])
        if len(parts) == 1:
            return self._unpadded(tokens)

        def compute(part: list[int]) -> torch.Tensor:
            with torch.inference_mode():  # each thread has its own mode
                return self._unpadded([tokens[index] for index in part])

        made = torch.cat(abreast.map(compute, parts))
        order = torch.tensor([index for part in parts for index in part])
        return torch.empty_like(made).index_copy_(0, order, made)

    def _unpadded(self, tokens: list[list[int]]) -> torch.Tensor:
        texts = Texts.of(tokens)
        row = cast("Bert", self._in_one_row)(texts)
        features = {"token_embeddings": texts.side_by_side(row), "attention_mask": texts.is_token}
        for module in list(cast("Any", self.library))[1:]:
            features = module(features)
        return features["sentence_embedding"]

    def _measured(self) -> int:
        return self.vectors(self.tokenize(["How long is a vector?"])).shape[1]


def unit(vectors: torch.Tensor) -> torch.Tensor:
    """Each row at length 1; one of zeros stays."""
    import torch

    return torch.nn.functional.normalize(vectors, dim=1)


def numbers(vectors: torch.Tensor) -> list[list[float]]:
    """Each row as numbers that are no longer to write than they are precise."""
    return cast("Any", vectors.double().round(decimals=_DECIMALS)).tolist()


def _in_one_row(library: SentenceTransformer) -> Bert | None:
    """The encoder's forward pass over texts in one row; None where padding stays.

    On a GPU, padding costs less than what this needs.
    """
    transformer = getattr(cast("Any", library[0]), "auto_model", None)
    return Bert(transformer) if library.device.type == "cpu" and is_bert(transformer) else None


def _reader(library: SentenceTransformer) -> Callable[[list[str]], Reading]:
    """What makes tokens of texts: the library's tokenizer, without what else it finds out about them.

    It is a copy, set as the library's own is after it has read a text: that one changes with each call.

    Raises:
        ValueError: the encoder wants more than texts.
    """
    prompt = _prompt(library)
    read = _plain_reader(library)
    return (lambda texts: read([prompt + text for text in texts])) if prompt else read


def _prompt(library: SentenceTransformer) -> str:
    """What the encoder wants before each text."""
    prompt = library.prompts.get(library.default_prompt_name or "")
    if not prompt:
        return ""
    if not all(getattr(module, "include_prompt", True) for module in list(cast("Any", library))):
        raise ValueError("encoders that leave their prompt out of the vector again aren't supported")
    return prompt


def _plain_reader(library: SentenceTransformer) -> Callable[[list[str]], Reading]:
    tokenizer = library.tokenizer
    limit = library.max_seq_length
    if type(library[0]).__name__ == "StaticEmbedding":  # which reads all, and adds nothing
        return lambda texts: Reading(
            [one.ids for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)], {}
        )

    if limit is None:
        raise ValueError("its module doesn't say how many tokens it reads; such encoders aren't supported")

    def read(texts: list[str]) -> Reading:
        tokens = tokenizer(texts, truncation=True, max_length=limit, verbose=False)["input_ids"]
        full = [index for index, one in enumerate(tokens) if len(one) == limit]
        whole = {index: len(tokenizer(texts[index], verbose=False)["input_ids"]) for index in full}
        return Reading(tokens, {index: length for index, length in whole.items() if length > limit})

    if not hasattr(tokenizer, "is_fast"):
        raise ValueError("its first module has no tokenizer of transformers; such encoders aren't supported")
    if not tokenizer.is_fast:
        return read
    read(["It is set."])
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    # Which a copy doesn't keep.
    backend.encode_special_tokens = tokenizer.backend_tokenizer.encode_special_tokens
    added = backend.num_special_tokens_to_add(is_pair=False)

    def read_fast(texts: list[str]) -> Reading:
        found = backend.encode_batch_fast(texts)
        tokens = [one.ids for one in found]
        # What was cut off is in pieces of the same limit, with the special tokens of each.
        whole = {
            index: len(one) + sum(len(piece) - added for piece in found[index].overflowing)
            for index, one in enumerate(tokens)
            if len(one) == limit
        }
        return Reading(tokens, {index: length for index, length in whole.items() if length > limit})

    return read_fast
