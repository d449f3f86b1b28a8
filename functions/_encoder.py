"""A sentence encoder whose forward pass leaves padding out where that pays."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final, cast

from functions._bert import Bert, Texts, is_bert

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from sentence_transformers import SentenceTransformer

# A vector's numbers are precise to seven digits or so; writing more than that doubles the answer's size.
_DECIMALS: Final = 8


class Encoder:
    """Texts to tokens, tokens to vectors of unit length.

    Args:
        library: the encoder as its library loaded it. It is not changed.
    """

    def __init__(self, library: SentenceTransformer) -> None:
        self.library = library
        self._in_one_row = _in_one_row(library)
        self._read = _reader(library)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.library.device

    def tokenize(self, texts: list[str]) -> list[list[int]]:
        """Each text's tokens, special ones included, cut at the encoder's limit."""
        return self._read(texts)

    def embed(self, tokens: list[list[int]]) -> list[list[float]]:
        """One forward pass. Lengths are settled in fp32: in bf16 they are off by 0.002."""
        import torch

        with torch.inference_mode():
            # A text without any token has no place in a row, nor anything to attend to.
            is_plain = self._in_one_row is not None and all(tokens)
            embedded = self._unpadded(tokens) if is_plain else self._padded(tokens)
            unit = torch.nn.functional.normalize(embedded.float(), dim=1)
            return cast("Any", unit.cpu().double().round(decimals=_DECIMALS)).tolist()

    def _padded(self, tokens: list[list[int]]) -> torch.Tensor:
        padded = self.library.tokenizer.pad({"input_ids": tokens}, return_tensors="pt")
        return cast("Any", self.library)(dict(padded.to(self.device)))["sentence_embedding"]

    def _unpadded(self, tokens: list[list[int]]) -> torch.Tensor:
        texts = Texts.of(tokens)
        row = cast("Bert", self._in_one_row)(texts)
        features = {"token_embeddings": texts.side_by_side(row), "attention_mask": texts.is_token}
        for module in list(cast("Any", self.library))[1:]:
            features = module(features)
        return features["sentence_embedding"]


def _in_one_row(library: SentenceTransformer) -> Bert | None:
    """The encoder's forward pass over texts in one row; None where padding stays.

    On a GPU, padding costs less than what this needs.
    """
    transformer = cast("Any", library[0]).auto_model
    return Bert(transformer) if library.device.type == "cpu" and is_bert(transformer) else None


def _reader(library: SentenceTransformer) -> Callable[[list[str]], list[list[int]]]:
    """What makes tokens of texts: the library's tokenizer, without what else it finds out about them.

    It is a copy, set as the library's own is after it has read a text: that one changes with each call.
    """
    tokenizer = library.tokenizer
    limit = library.max_seq_length

    def read(texts: list[str]) -> list[list[int]]:
        return tokenizer(texts, truncation=True, max_length=limit, verbose=False)["input_ids"]

    if not tokenizer.is_fast:
        return read
    read(["It is set."])
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    # Which a copy doesn't keep.
    backend.encode_special_tokens = tokenizer.backend_tokenizer.encode_special_tokens
    return lambda texts: [one.ids for one in backend.encode_batch_fast(texts)]
