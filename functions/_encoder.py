"""A sentence encoder whose forward pass leaves padding out where that pays.

A pass over texts of several lengths computes every text at the length of the longest: of 32 texts of 14 to 26
words, a quarter of the rows is padding. All layers but attention work on each token alone, so they can run
over the texts' tokens in one row without any; only attention needs them side by side. This is how the
variable-length kernels for GPUs are fed; on a CPU it is worth a fifth of a pass (docs/performance.md).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from functions._prepacked import prepack

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

_ATTENTION: Final = "headrace-side-by-side"

# Up to this many tokens a text, attention's small products are faster in fp32 than in bf16 on a CPU.
_FP32_TOKENS: Final = 32

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

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.library.device

    def tokenize(self, texts: list[str]) -> list[list[int]]:
        """Each text's tokens, special ones included, cut at the encoder's limit."""
        limit = self.library.max_seq_length
        return self.library.tokenizer(texts, truncation=True, max_length=limit, verbose=False)["input_ids"]

    def embed(self, tokens: list[list[int]]) -> list[list[float]]:
        """One forward pass. Lengths are settled in fp32: in bf16 they are off by 0.002."""
        import torch

        with torch.inference_mode():
            embedded = self._padded(tokens) if self._in_one_row is None else self._unpadded(tokens)
            unit = torch.nn.functional.normalize(embedded.float(), dim=1)
            return cast("Any", unit.cpu().double().round(decimals=_DECIMALS)).tolist()

    def _padded(self, tokens: list[list[int]]) -> torch.Tensor:
        padded = self.library.tokenizer.pad({"input_ids": tokens}, return_tensors="pt")
        return cast("Any", self.library)(dict(padded.to(self.device)))["sentence_embedding"]

    def _unpadded(self, tokens: list[list[int]]) -> torch.Tensor:
        import torch

        transformer = cast("Any", self._in_one_row)
        texts = _Texts.of(tokens, transformer.config.num_attention_heads, transformer.dtype)
        ids = torch.tensor([[token for text in tokens for token in text]])
        row = transformer(
            input_ids=ids,
            token_type_ids=torch.zeros_like(ids),
            position_ids=torch.tensor([[place for text in tokens for place in range(len(text))]]),
            texts=texts,
        )
        features = {"token_embeddings": texts.side_by_side(row[0][0]), "attention_mask": texts.is_token}
        for module in list(self.library)[1:]:
            features = module(features)
        return features["sentence_embedding"]


def _in_one_row(library: SentenceTransformer) -> torch.nn.Module | None:
    """The encoder's transformer, with attention that keeps texts in one row apart; None where padding stays.

    Its weights are the library's, or copies of them in another layout. Only BERT itself is taken: other
    families count positions in ways of their own. On a GPU, padding costs less than what this needs.
    """
    transformer = cast("Any", library[0]).auto_model
    if library.device.type != "cpu" or transformer.config.model_type != "bert":
        return None
    from transformers import AttentionInterface

    cast("Any", AttentionInterface).register(_ATTENTION, _attention)
    weights = {id(tensor): tensor for tensor in [*transformer.parameters(), *transformer.buffers()]}
    twin = copy.deepcopy(transformer, weights)
    twin.set_attn_implementation(_ATTENTION)
    prepack(twin)
    return twin


@dataclass(frozen=True)
class _Texts:
    """Where the tokens of texts in one row stand when the texts are put side by side.

    Args:
        is_token: for each text and place, 1 where there is a token, 0 where there is padding.
        tokens: of each place side by side, a token in the row: its own, or the first where there is padding.
        heads: of attention. What follows is by text, head and place, flattened: the layout of its products.
        head_places: of each token and head in the row, its place there.
        head_tokens: of each place there, a token and head in the row.
        unread: added to scores: nothing where a token may be read, minus infinity where there is padding.
    """

    is_token: torch.Tensor
    tokens: torch.Tensor
    heads: int
    head_places: torch.Tensor
    head_tokens: torch.Tensor
    unread: torch.Tensor

    @staticmethod
    def of(tokens: list[list[int]], heads: int, dtype: torch.dtype) -> _Texts:
        """The places of texts with these tokens, for attention with so many heads in that type."""
        import torch

        lengths = torch.tensor([len(text) for text in tokens])
        longest = int(lengths.max())
        is_token = torch.arange(longest)[None] < lengths[:, None]
        places = is_token.view(-1).nonzero()[:, 0]
        own = torch.zeros(is_token.shape, dtype=torch.long)
        own.view(-1)[places] = torch.arange(len(places))
        head = torch.arange(heads)
        text, place = places // longest, places % longest
        computed = torch.float32 if longest <= _FP32_TOKENS else dtype
        unread = torch.zeros(is_token.shape, dtype=computed).masked_fill(~is_token, float("-inf"))
        return _Texts(
            is_token=is_token.long(),
            tokens=own.view(-1),
            heads=heads,
            head_places=((text[:, None] * heads + head) * longest + place[:, None]).view(-1),
            head_tokens=(own[:, None, :] * heads + head[:, None]).view(-1),
            unread=unread[:, None, None].expand(-1, heads, longest, -1).reshape(-1, longest, longest),
        )

    def side_by_side(self, row: torch.Tensor) -> torch.Tensor:
        """From (tokens, width) to (texts, longest, width)."""
        return row.index_select(0, self.tokens).view(*self.is_token.shape, row.shape[1])

    def apart(self, row: torch.Tensor) -> torch.Tensor:
        """From (1, heads, tokens, width) to (texts x heads, longest, width), for attention's products."""
        width = row.shape[3]
        found = row[0].transpose(0, 1).reshape(-1, width).index_select(0, self.head_tokens)
        return found.view(-1, self.unread.shape[1], width).to(self.unread.dtype)

    def together(self, products: torch.Tensor) -> torch.Tensor:
        """From (texts x heads, longest, width) to (1, tokens, heads, width)."""
        width = products.shape[2]
        return products.view(-1, width).index_select(0, self.head_places).view(1, -1, self.heads, width)


def _attention(  # the parameters are what transformers passes
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    texts: _Texts,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention of each text to itself (Vaswani et al., 2017), as two batched products.

    For texts this short they take half the time of the library's fused kernel.
    """
    import torch

    keys = texts.apart(key).transpose(1, 2)
    scores = torch.baddbmm(texts.unread, texts.apart(query), keys, alpha=scaling)
    found = torch.bmm(scores.softmax(-1), texts.apart(value))
    return texts.together(found.to(query.dtype)), None
