"""Linear layers whose weights are laid out once as the CPU's kernels read them.

oneDNN, which computes bf16 products on CPUs, wants weights in blocks of its own. torch hands it plain ones,
so each product begins by laying them out anew: a third of the time of one text by itself, a tenth of 32
together (docs/performance.md). torch's compiler does it once when it freezes a model, by the two operators
that are used here; compiling needs a C++ compiler and a minute at each start, which no runner should need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

_ROWS: Final = 512  # for as many the layout is chosen; products of fewer and of more are right as well


def prepack(network: torch.nn.Module) -> None:
    """Have the layers of a BERT encoder on the CPU use weights laid out for it, where that pays.

    They compute as before, but can't be trained, moved or cast any more. Nothing changes where the weights
    aren't bf16, or torch lacks the operators: they are no part of its documented interface.
    """
    import torch

    operators = torch.ops.mkldnn
    has_operators = hasattr(operators, "_linear_pointwise") and hasattr(operators, "_reorder_linear_weight")
    if not (torch.backends.mkldnn.is_available() and has_operators):
        return
    within: set[object] = set()
    for module in cast("list[Any]", list(network.modules())):  # outer ones come first
        if _is_followed_by_gelu(module):  # the kernel applies it to the products while it has them at hand
            module.forward = _product(module.dense, "gelu", "none")
            within.add(module.dense)
        elif _is_bf16(module) and module not in within:
            module.forward = _product(module)


def _is_bf16(module: object) -> bool:
    import torch

    return isinstance(module, torch.nn.Linear) and module.weight.dtype == torch.bfloat16


def _is_followed_by_gelu(module: Any) -> bool:
    """Whether all that the module does is a product and the exact GELU (Hendrycks and Gimpel, 2016)."""
    import torch
    from transformers.activations import GELUActivation
    from transformers.models.bert.modeling_bert import BertIntermediate

    activation = getattr(module, "intermediate_act_fn", None)
    is_exact = isinstance(activation, GELUActivation) and activation.act is torch.nn.functional.gelu
    return type(module) is BertIntermediate and is_exact and _is_bf16(module.dense)


def _product(
    layer: torch.nn.Linear, activation: str = "none", algorithm: str = ""
) -> Callable[[torch.Tensor], torch.Tensor]:
    import torch

    weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), _ROWS)  # noqa: SLF001 - see above
    bias = cast("torch.Tensor | None", layer.bias)
    bias = None if bias is None else bias.detach()
    product = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 - likewise

    def forward(rows: torch.Tensor) -> torch.Tensor:
        return product(rows, weight, bias, activation, [], algorithm)

    return forward
