"""BERT's forward pass (Devlin et al., 2019) over texts in one row, without padding but in attention.

A pass over texts of several lengths computes every text at the length of the longest: of 32 texts of 14 to 26
words, a quarter of the rows is padding. All layers but attention work on each token alone, so they can run
over the texts' tokens in one row without any; only attention needs them side by side. This is how the
variable-length kernels for GPUs are fed; on a CPU it is worth a fifth of a pass (docs/performance.md).

Between two products, which are what the time should go into, there is as little as can be: queries, keys and
values are one product, and are put side by side and apart by head in two steps.

Where products are in bf16, what passes from layer to layer is in fp32 all the same, and so are its sums and
normalisations. Rounded at both of a layer, they were much of what vectors were off by, most in texts of one
word; it costs a hundredth of a pass (docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from functions._prepacked import product

if TYPE_CHECKING:
    import torch

# Up to this many tokens a text, attention's small products are faster in fp32 than in bf16 on a CPU.
_FP32_TOKENS: Final = 32


@contextmanager
def norms_in_fp32() -> Generator[None]:
    """Within, BERT is loaded with its normalisations in fp32, whatever type is asked for: on a CPU only.

    They are one weight in two thousand, and two thirds of what rounding weights to bf16 costs the vectors.
    A GPU's kernels want them in the type of the rest.
    """
    from transformers.models.bert.modeling_bert import BertModel

    model = cast("Any", BertModel)
    before = model._keep_in_fp32_modules_strict  # noqa: SLF001 - meant for those who write models
    model._keep_in_fp32_modules_strict = ["LayerNorm"]  # noqa: SLF001 - likewise
    try:
        yield
    finally:
        model._keep_in_fp32_modules_strict = before  # noqa: SLF001 - likewise


def is_bert(transformer: object) -> bool:
    """Whether it is BERT as transformers has it, and reads texts only.

    Other families count positions in ways of their own; an adapter's layers aren't linear ones. In training
    a pass leaves numbers out by chance, and a hook may do anything in the pass of the module that has it.
    """
    import torch
    from transformers.models.bert.modeling_bert import BertModel

    if type(transformer) is not BertModel or cast("Any", transformer).config.is_decoder:
        return False
    if any(map(does_more, transformer.modules())):
        return False
    layers = [part for layer in transformer.encoder.layer for part in _linear_parts(layer)]
    return all(type(one) is torch.nn.Linear and cast("Any", one).bias is not None for one in layers)


def does_more(module: Any) -> bool:
    """Whether something is done to a module's outputs that isn't in its class."""
    hooks = module._forward_hooks or module._forward_pre_hooks  # noqa: SLF001 - there is no other way
    return bool(module.training or hooks or "forward" in vars(module))


def _linear_parts(layer: Any) -> list[torch.nn.Linear]:
    attention = layer.attention
    own = attention.self
    return [
        own.query,
        own.key,
        own.value,
        attention.output.dense,
        layer.intermediate.dense,
        layer.output.dense,
    ]


@dataclass(frozen=True)
class Texts:
    """Where the tokens of texts in one row stand when the texts are put side by side.

    Args:
        ids: the row of tokens.
        positions: of each in its text.
        is_token: for each text and place, 1 where there is a token, 0 where there is padding.
        tokens: of each place side by side, a token in the row: its own, or the first where there is padding.
        places: of each token in the row, its place side by side.
        unread: for each text and place, added to scores: nothing where there is a token, minus infinity where
            there is padding.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    is_token: torch.Tensor
    tokens: torch.Tensor
    places: torch.Tensor
    unread: torch.Tensor

    @staticmethod
    def of(tokens: list[list[int]]) -> Texts:
        """The places of texts with these tokens."""
        import torch

        lengths = torch.tensor([len(text) for text in tokens])
        longest = int(lengths.max())
        is_token = torch.arange(longest)[None] < lengths[:, None]
        places = is_token.view(-1).nonzero()[:, 0]
        own = torch.zeros(is_token.shape, dtype=torch.long)
        own.view(-1)[places] = torch.arange(len(places))
        return Texts(
            ids=torch.tensor([token for text in tokens for token in text]),
            positions=places % longest,
            is_token=is_token.long(),
            tokens=own.view(-1),
            places=places,
            unread=torch.zeros(is_token.shape).masked_fill(~is_token, float("-inf")),
        )

    def side_by_side(self, row: torch.Tensor) -> torch.Tensor:
        """From (tokens, width) to (texts, longest, width)."""
        return row.index_select(0, self.tokens).view(*self.is_token.shape, row.shape[1])

    def in_one_row(self, places: torch.Tensor) -> torch.Tensor:
        """From (texts, longest, heads, width) to (tokens, heads x width)."""
        return places.view(self.tokens.shape[0], -1).index_select(0, self.places)


class Bert:
    """The forward pass of such an encoder.

    Args:
        transformer: it is not changed. What is computed with are its weights, or copies in another layout.
    """

    def __init__(self, transformer: Any) -> None:
        self._embeddings = transformer.embeddings
        self.layers = [_Layer(layer) for layer in transformer.encoder.layer]

    def __call__(self, texts: Texts) -> torch.Tensor:
        """The last layer's outputs, of shape (tokens, width)."""
        import torch

        ids = texts.ids[None]
        types, positions = torch.zeros_like(ids), texts.positions[None]
        row = self._embeddings(input_ids=ids, token_type_ids=types, position_ids=positions)[0]
        dtype = row.dtype
        for layer in self.layers:
            row = layer(row, texts)
        return row.to(dtype)


class _Layer:
    """One of BERT's layers."""

    def __init__(self, layer: Any) -> None:
        query, key, value, output, widen, narrow = _linear_parts(layer)
        attention = layer.attention
        self._heads: int = attention.self.num_attention_heads
        self._scaling: float = attention.self.scaling
        self._queries_keys_values = product(query, key, value)
        self._output = product(output)
        self._norm = _norm(attention.output.LayerNorm)
        self._widen = product(widen, after=layer.intermediate.intermediate_act_fn)
        self._narrow = product(narrow)
        self._last_norm = _norm(layer.output.LayerNorm)
        self._dtype: torch.dtype = query.weight.dtype

    def __call__(self, row: torch.Tensor, texts: Texts) -> torch.Tensor:
        """From (tokens, width) to the same, in fp32; products are in the weights' type."""
        found = self._attention(self._queries_keys_values(row.to(self._dtype)), texts)
        row = self._norm(self._output(found).float().add_(row))
        return self._last_norm(self._narrow(self._widen(row.to(self._dtype))).float().add_(row))

    def _attention(self, row: torch.Tensor, texts: Texts) -> torch.Tensor:
        """Scaled dot-product attention within each text (Vaswani et al., 2017), as two batched products.

        For texts this short they take less than the library's fused kernel.
        """
        import torch

        count, longest = texts.is_token.shape
        heads = self._heads
        dtype = torch.float32 if longest <= _FP32_TOKENS else row.dtype
        by_token = texts.side_by_side(row).view(count, longest, 3, heads, -1)
        by_head = (
            by_token.permute(2, 0, 3, 1, 4).to(dtype, memory_format=torch.contiguous_format).contiguous()
        )
        queries, keys, values = by_head.view(3, count * heads, longest, -1)
        unread = texts.unread.to(dtype)[:, None, None].expand(-1, heads, -1, -1).reshape(-1, 1, longest)
        scores = torch.baddbmm(unread, queries, keys.transpose(1, 2), alpha=self._scaling)
        found = torch.bmm(scores.softmax(-1), values).view(count, heads, longest, -1).transpose(1, 2)
        return texts.in_one_row(found.to(row.dtype, memory_format=torch.contiguous_format).contiguous())


def _norm(layer: torch.nn.LayerNorm) -> Callable[[torch.Tensor], torch.Tensor]:
    """The layer, of rows in fp32."""
    import torch

    weight, bias, epsilon = layer.weight.detach().float(), layer.bias.detach().float(), layer.eps
    return lambda rows: torch.nn.functional.layer_norm(rows, weight.shape, weight, bias, epsilon)
