"""Linear layers whose weights are laid out once as the CPU's kernels read them.

oneDNN, which computes bf16 products on CPUs, wants weights in blocks of its own. torch hands it plain ones,
so each product begins by laying them out anew: a third of the time of one text by itself, a tenth of 32
together (docs/performance.md). torch's compiler does it once when it freezes a model, by the two operators
that are used here; compiling needs a C++ compiler and a minute at each start, which no runner should need.

Its kernels also apply a function to the products, or add to them, while they have them at hand.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    import torch

    Product = Callable[[torch.Tensor], torch.Tensor]
    Combined = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

log = logging.getLogger(__name__)

_ROWS: Final = 512  # for as many the layout is chosen; products of fewer and of more are right as well
_TRIED_ROWS: Final = 5
_MOST_OFF: Final = 0.02  # of the largest number; what bf16's rounding explains is a fifth of that


def product(*layers: torch.nn.Linear, after: object = None) -> Product:
    """What these layers make of rows, side by side; `after`, a module or function, is applied to it.

    Weights are laid out where that pays, and are the layers' own elsewhere: where they aren't bf16, or torch
    lacks the operators, which are no part of its documented interface, or they make something else of a few
    rows.
    """
    import torch

    apply = cast("Product | None", after)

    def plainly(rows: torch.Tensor) -> torch.Tensor:
        made = [torch.nn.functional.linear(rows, one.weight, one.bias) for one in layers]
        products = made[0] if len(made) == 1 else torch.cat(made, -1)
        return products if apply is None else apply(products)

    def laid_out() -> Product:
        multiply, weight, bias = _laid_out(*layers)
        last = apply
        if last is None:
            return lambda rows: multiply(rows, weight, bias, "none", [], "")
        if _is_exact_gelu(last):
            return lambda rows: multiply(rows, weight, bias, "gelu", [], "none")
        if _is_silu(last):
            return lambda rows: multiply(rows, weight, bias, "swish", [], "")
        return lambda rows: last(multiply(rows, weight, bias, "none", [], ""))

    return _if_the_same(laid_out, plainly, _rows(layers[0].in_features)) if _pays(*layers) else plainly


def product_and_sum(layer: torch.nn.Linear) -> Combined:
    """What the layer makes of rows, plus others, its weights as in `product`."""
    import torch

    return _combined(layer, "add", torch.add)


def product_times(layer: torch.nn.Linear) -> Combined:
    """What the layer makes of rows, times others, number by number; its weights as in `product`."""
    import torch

    return _combined(layer, "mul", torch.mul)


def _combined(layer: torch.nn.Linear, name: str, combine: Combined) -> Combined:
    """What the layer makes of rows, combined with others by an operation that oneDNN calls `name`."""
    import torch

    def plainly(rows: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        return combine(torch.nn.functional.linear(rows, layer.weight, layer.bias), others)

    def laid_out() -> Combined:
        multiply, weight, bias = _laid_out(layer)
        return lambda rows, others: multiply.binary(rows, others, weight, bias, name)

    if not _pays(layer):
        return plainly
    return _if_the_same(laid_out, plainly, _rows(layer.in_features), _rows(layer.out_features))


def _if_the_same(
    make: Callable[[], Callable[..., torch.Tensor]],
    plainly: Callable[..., torch.Tensor],
    *tried: torch.Tensor,
) -> Callable[..., torch.Tensor]:
    """What is made, if it gives what the plain way does; else that."""
    import torch

    try:
        made = make()
        with torch.inference_mode():
            ours, theirs = made(*tried), plainly(*tried)
            off = (ours.float() - theirs.float()).abs().max() / theirs.float().abs().max().clamp(min=1e-6)
        if ours.dtype == theirs.dtype and ours.shape == theirs.shape and float(off) <= _MOST_OFF:
            return made
        why = f"their products are off by {float(off):.3g}"
    except Exception as error:  # another signature, or whatever else another version does
        why = str(error).partition("\n")[0]
    _tell(why)
    return plainly


@cache
def _tell(why: str) -> None:
    """Once, not for each layer."""
    log.warning("weights stay as they are, as oneDNN's operators in torch aren't as expected: %s", why)


def _rows(width: int) -> torch.Tensor:
    """A few rows of numbers between -1 and 1, the same each time."""
    import torch

    return torch.arange(_TRIED_ROWS * width).view(_TRIED_ROWS, width).float().sin().bfloat16()


def _pays(*layers: torch.nn.Linear) -> bool:
    import torch

    if any(one.weight.dtype != torch.bfloat16 for one in layers) or not torch.backends.mkldnn.is_available():
        return False
    if len({_has_bias(one) for one in layers}) != 1:
        return False
    operators = torch.ops.mkldnn
    multiply = getattr(operators, "_linear_pointwise", None)
    return hasattr(multiply, "binary") and hasattr(operators, "_reorder_linear_weight")


def _laid_out(*layers: torch.nn.Linear) -> tuple[Any, torch.Tensor, torch.Tensor | None]:
    """The operator, the weights in its layout, and the biases, which all layers have or none."""
    import torch

    weights = layers[0].weight if len(layers) == 1 else torch.cat([one.weight for one in layers])
    biases = [one.bias.detach() for one in layers if _has_bias(one)]
    operators = torch.ops.mkldnn
    laid_out = operators._reorder_linear_weight(weights.detach(), _ROWS)  # noqa: SLF001 - see above
    bias = torch.cat(biases) if biases else None
    return operators._linear_pointwise, laid_out, bias  # noqa: SLF001 - likewise


def _has_bias(layer: torch.nn.Linear) -> bool:
    return cast("torch.Tensor | None", layer.bias) is not None


def _is_exact_gelu(function: object) -> bool:
    """Whether it is GELU as in Hendrycks and Gimpel, 2016, and no approximation."""
    import torch
    from transformers.activations import GELUActivation

    return isinstance(function, GELUActivation) and function.act is torch.nn.functional.gelu


def _is_silu(function: object) -> bool:
    """Whether it is SiLU as in Hendrycks and Gimpel, 2016."""
    import torch
    from transformers.activations import SiLUActivation

    return type(function) in {torch.nn.SiLU, SiLUActivation}
