"""Linear layers whose weights are laid out once as the CPU's kernels read them.

oneDNN, which computes bf16 products on CPUs, wants weights in blocks of its own. torch hands it plain ones,
so each product begins by laying them out anew: a third of the time of one text by itself, a tenth of 32
together (docs/performance.md). torch's compiler does it once when it freezes a model, by the two operators
that are used here; compiling needs a C++ compiler and a minute at each start, which no runner should need.

Its kernels also apply a function to the products, or add to them, while they have them at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    import torch

    Product = Callable[[torch.Tensor], torch.Tensor]
    Sum = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_ROWS: Final = 512  # for as many the layout is chosen; products of fewer and of more are right as well


def product(*layers: torch.nn.Linear, after: object = None) -> Product:
    """What these layers make of rows, side by side; `after`, a module or function, is applied to it.

    Weights are laid out where that pays, and are the layers' own elsewhere: where they aren't bf16, or torch
    lacks the operators, which are no part of its documented interface.
    """
    import torch

    apply = cast("Product | None", after)
    if not _pays(*layers):

        def plainly(rows: torch.Tensor) -> torch.Tensor:
            made = [torch.nn.functional.linear(rows, one.weight, one.bias) for one in layers]
            products = made[0] if len(made) == 1 else torch.cat(made, -1)
            return products if apply is None else apply(products)

        return plainly

    multiply, weight, bias = _laid_out(*layers)
    if apply is not None and not _is_exact_gelu(apply):
        return lambda rows: apply(multiply(rows, weight, bias, "none", [], ""))
    function = "none" if apply is None else "gelu"
    return lambda rows: multiply(rows, weight, bias, function, [], "none")


def product_and_sum(layer: torch.nn.Linear) -> Sum:
    """What the layer makes of rows, plus others, its weights as in `product`."""
    import torch

    if not _pays(layer):
        return lambda rows, others: torch.nn.functional.linear(rows, layer.weight, layer.bias) + others
    multiply, weight, bias = _laid_out(layer)
    return lambda rows, others: multiply.binary(rows, others, weight, bias, "add")


def _pays(*layers: torch.nn.Linear) -> bool:
    import torch

    if any(one.weight.dtype != torch.bfloat16 for one in layers) or not torch.backends.mkldnn.is_available():
        return False
    operators = torch.ops.mkldnn
    multiply = getattr(operators, "_linear_pointwise", None)
    return hasattr(multiply, "binary") and hasattr(operators, "_reorder_linear_weight")


def _laid_out(*layers: torch.nn.Linear) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """The operator, the weights in its layout, and the biases."""
    import torch

    weights = layers[0].weight if len(layers) == 1 else torch.cat([one.weight for one in layers])
    biases = torch.cat([one.bias.detach() for one in layers])
    operators = torch.ops.mkldnn
    laid_out = operators._reorder_linear_weight(weights.detach(), _ROWS)  # noqa: SLF001 - see above
    return operators._linear_pointwise, laid_out, biases  # noqa: SLF001 - likewise


def _is_exact_gelu(function: object) -> bool:
    """Whether it is GELU as in Hendrycks and Gimpel, 2016, and no approximation."""
    import torch
    from transformers.activations import GELUActivation

    return isinstance(function, GELUActivation) and function.act is torch.nn.functional.gelu
