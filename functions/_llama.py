"""LLaMA's forward pass (Touvron et al., 2023) for continuous batching on a CPU.

A step gives each generation that runs one token, so its products have few rows, and most of its time goes
into bringing weights from memory. The library's pass lays all of them out anew before it multiplies, and lets
each row attend to the keys of all generations under a mask. Here weights are laid out once, fewer and larger
products have what comes after them inside, and rows meet the keys of their own generation only
(docs/performance.md). Which generations are in a step, and where their keys and values are kept, is the
library's business; how it calls a pass is no part of its documented interface, so pyproject.toml allows one
minor version of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from functions._bert import does_more
from functions._prepacked import product, product_and_sum, product_times

if TYPE_CHECKING:
    import torch

# Generations attend side by side, padded to the longest of them, where that at most doubles what is read, or
# where it is this short.
_SHORT_TOKENS: Final = 128


def use_ours(network: Any) -> None:
    """Let a network of transformers compute its steps of continuous batching here, if it is one that can.

    It does nothing else afterwards: weights are held in another layout, and the library's layers are gone.
    """
    if network.device.type == "cpu" and is_llama(network):
        network.forward = Llama(network)


def is_llama(network: object) -> bool:
    """Whether it is LLaMA as transformers has it, and nothing but its class says what it does."""
    import torch
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    if type(network) is not LlamaForCausalLM or any(map(does_more, network.modules())):
        return False
    known = cast("Any", network)
    if getattr(known.config, "sliding_window", None) or getattr(known.config, "layer_types", None):
        return False  # what the library's pages know, and its LLaMA doesn't
    parts = [part for layer in known.model.layers for part in _linear_parts(layer)]
    return all(type(one) is torch.nn.Linear for one in (*parts, known.lm_head))


def _linear_parts(layer: Any) -> list[torch.nn.Linear]:
    attention, mlp = layer.self_attn, layer.mlp
    return [
        attention.q_proj,
        attention.k_proj,
        attention.v_proj,
        attention.o_proj,
        mlp.gate_proj,
        mlp.up_proj,
        mlp.down_proj,
    ]


class Logits(NamedTuple):
    """What the library expects of a pass.

    Args:
        logits: of shape (1, rows that were asked for, vocabulary).
    """

    logits: torch.Tensor


class Llama:
    """The forward pass of such a network.

    Args:
        network: its layers are taken out, one after the other, so that weights are never held twice.
    """

    def __init__(self, network: Any) -> None:
        model = network.model
        # Copies of what is kept, as any of it would keep all of the mapped file in memory.
        model.embed_tokens.weight.data = model.embed_tokens.weight.data.clone()
        model.norm.weight.data = model.norm.weight.data.clone()
        self._embed = model.embed_tokens
        self._positions = model.rotary_emb
        count = len(model.layers)
        self._layers = [_Layer(model.layers.pop(0), number) for number in range(count)]
        self._norm = _norm(model.norm)
        self._head = product(network.lm_head)
        network.lm_head = None

    def __call__(
        self,
        *,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        logits_to_keep: torch.Tensor,
        cache: Any,
        **step: Any,
    ) -> Logits:
        """A step.

        Args:
            input_ids: the tokens of all generations in one row, of shape (1, tokens).
            position_ids: of each in its generation.
            logits_to_keep: the tokens whose next one is asked for.
            cache: the library's pages of keys and values.
            step: what else the library says of a step (PagedAttentionArgs).
        """
        places = Places.of(step, self._embed.weight.dtype)
        row = self._embed(input_ids[0])
        cos, sin = self._positions(row, position_ids)
        half = sin.shape[-1] // 2
        turns = _Turns(cos[0, :, None], _signed(sin[0, :, None], half), half)
        for layer in self._layers:
            row = layer(row, turns, cache, places)
        return Logits(self._head(self._norm(row.index_select(0, logits_to_keep)))[None])


class _Turns(NamedTuple):
    """By what queries and keys are turned (Su et al., 2021): cosines and sines for each token."""

    cos: torch.Tensor
    sin: torch.Tensor
    half: int

    def turned(self, heads: torch.Tensor) -> torch.Tensor:
        """Of shape (tokens, heads, width)."""
        import torch

        return torch.addcmul(heads * self.cos, heads.roll(self.half, -1), self.sin)


def _signed(sin: torch.Tensor, half: int) -> torch.Tensor:
    """With the sign that the other half of a head gets."""
    import torch

    return torch.cat([-sin[..., :half], sin[..., half:]], -1)


@dataclass(frozen=True)
class _Together:
    """Generations that attend side by side, each from its last token, or one from several.

    Args:
        tokens: their places in the row, or None where they are the whole row.
        keys: where what was read for them begins and ends.
        count: the number of generations.
        unread: added to scores, of shape (generations, 1, 1, keys) or (tokens, keys): nothing, or minus
            infinity where a key is another's or comes later. None if each token reads the keys up to its own.
        is_causal: whether that is so.
    """

    tokens: torch.Tensor | None
    keys: slice
    count: int
    unread: torch.Tensor | None
    is_causal: bool = False


class Places(NamedTuple):
    """Where the tokens of a step stand, and what they read and write.

    Args:
        read: for each of the groups in turn, where the pages have the keys and values of its generations.
        written: for each token, where its own belong.
    """

    read: torch.Tensor
    written: torch.Tensor
    groups: list[_Together]

    @staticmethod
    def of(step: dict[str, Any], dtype: torch.dtype) -> Places:
        """From what the library says of a step."""
        import torch

        (written,), (read,) = step["write_index"], step["read_index"]
        (ends,) = step["cu_seq_lens_k"].values()
        if not read.numel():
            read = written  # nothing was there before
        rows, keys = step["cu_seq_lens_q"].tolist(), ends.tolist()
        spans = [
            _Span(rows[at], rows[at + 1] - rows[at], keys[at], keys[at + 1] - keys[at])
            for at in range(len(rows) - 1)
        ]
        groups: list[_Together] = []
        order: list[torch.Tensor] = []
        begin = 0
        for some in _side_by_side(spans):
            found, group = _joined(sorted(some), begin, dtype, is_all=len(some) == len(spans))
            begin = group.keys.stop
            groups.append(group)
            order.append(found)
        return Places(
            read.index_select(0, order[0] if len(order) == 1 else torch.cat(order)), written, groups
        )


class _Span(NamedTuple):
    """The tokens and the keys of one generation in a step: where they begin, and how many they are."""

    row: int
    rows: int
    key: int
    keys: int


def _side_by_side(spans: list[_Span]) -> list[list[_Span]]:
    """Groups of generations that attend together: those with one token, if they are about as long.

    In each the longest comes first.
    """
    groups = [[span] for span in spans if span.rows > 1]
    alike: list[_Span] = []
    for span in sorted((span for span in spans if span.rows == 1), key=lambda span: -span.keys):
        if alike and alike[0].keys > max(2 * span.keys, _SHORT_TOKENS):
            groups.append(alike)
            alike = []
        alike.append(span)
    return [*groups, alike] if alike else groups


def _joined(
    spans: list[_Span], begin: int, dtype: torch.dtype, *, is_all: bool
) -> tuple[torch.Tensor, _Together]:
    """The keys that a group reads, of all that are read, and the group."""
    import torch

    first = spans[0]
    if first.rows > 1:  # by itself
        tokens = None if is_all else torch.arange(first.row, first.row + first.rows)
        unread = None
        if first.rows < first.keys:
            unread = torch.full((first.rows, first.keys), float("-inf"), dtype=dtype)
            unread = unread.triu_(first.keys - first.rows + 1)
        keys = torch.arange(first.key, first.key + first.keys)
        part = slice(begin, begin + first.keys)
        return keys, _Together(tokens, part, 1, unread, is_causal=unread is None)
    starts, lengths = torch.tensor([[span.key, span.keys] for span in spans]).T[..., None]
    longest = max(span.keys for span in spans)
    places = torch.arange(longest)
    unread = torch.zeros((len(spans), 1, 1, longest), dtype=dtype)
    unread.masked_fill_((places >= lengths)[:, None, None], float("-inf"))
    keys = (starts + torch.minimum(places, lengths - 1)).view(-1)
    tokens = None if is_all else torch.tensor([span.row for span in spans])
    return keys, _Together(tokens, slice(begin, begin + len(keys)), len(spans), unread)


class _Layer:
    """One of its layers."""

    def __init__(self, layer: Any, number: int) -> None:
        query, key, value, output, gate, up, down = _linear_parts(layer)
        self._number = number
        self._width: int = layer.self_attn.head_dim
        self._heads: int = query.out_features // self._width
        self._key_heads: int = key.out_features // self._width
        self._scaling: float = layer.self_attn.scaling
        self._norm = _norm(layer.input_layernorm)
        self._queries_keys_values = product(query, key, value)
        self._output = product_and_sum(output)
        self._last_norm = _norm(layer.post_attention_layernorm)
        self._gate = product(gate, after=layer.mlp.act_fn)
        self._up = product_times(up)
        self._down = product_and_sum(down)

    def __call__(self, row: torch.Tensor, turns: _Turns, cache: Any, places: Places) -> torch.Tensor:
        """From (tokens, width) to the same."""
        by_head = self._queries_keys_values(self._norm(row)).view(len(row), -1, self._width)
        turned = turns.turned(by_head[:, : self._heads + self._key_heads])
        keys, values = cache.layer_to_allocator[self._number].update(
            turned[:, self._heads :],
            by_head[:, self._heads + self._key_heads :],
            self._number,
            places.read,
            places.written,
        )
        found = self._attention(turned[:, : self._heads], keys, values, places.groups)
        row = self._output(found, row)
        normed = self._last_norm(row)
        return self._down(self._up(normed, self._gate(normed)), row)

    def _attention(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, groups: list[_Together]
    ) -> torch.Tensor:
        """Scaled dot-product attention (Vaswani et al., 2017), by groups (Ainslie et al., 2023)."""
        if len(groups) == 1:
            return self._together(queries, keys, values, groups[0])
        found = queries.new_empty(len(queries), self._heads * self._width)
        for group in groups:
            own = queries.index_select(0, cast("torch.Tensor", group.tokens))
            part = self._together(own, keys[group.keys], values[group.keys], group)
            found.index_copy_(0, cast("torch.Tensor", group.tokens), part)
        return found

    def _together(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: _Together
    ) -> torch.Tensor:
        from torch.nn.functional import scaled_dot_product_attention as attention

        def by_head(kept: torch.Tensor) -> torch.Tensor:
            return kept.view(group.count, -1, self._key_heads, self._width).transpose(1, 2)

        if group.count == len(queries):
            # Those that share keys are put where another's queries would be at other times.
            sharing = queries.reshape(group.count, self._key_heads, -1, self._width)
            unread = cast("torch.Tensor", group.unread).expand(-1, -1, sharing.shape[2], -1)
            found = attention(sharing, by_head(keys), by_head(values), attn_mask=unread, scale=self._scaling)
            return found.reshape(group.count, -1)
        found = attention(
            queries.transpose(0, 1)[None],
            by_head(keys),
            by_head(values),
            attn_mask=group.unread,
            is_causal=group.is_causal,
            scale=self._scaling,
            enable_gqa=True,
        )
        return found[0].transpose(0, 1).reshape(len(queries), -1)


def _norm(norm: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """As Zhang and Sennrich, 2019."""
    from torch.nn.functional import rms_norm

    weight, epsilon = norm.weight.detach().clone(), norm.variance_epsilon
    shape = list(weight.shape)
    return lambda row: rms_norm(row, shape, weight, epsilon)
