"""Products of rows with weights that are laid out once: what the plain layers give, or the plain layers."""

# ruff: noqa: PLC0415 - the libraries take seconds to import, and may not be there

from __future__ import annotations

from types import SimpleNamespace

import pytest

from functions import _prepacked
from functions._prepacked import product, product_and_sum

torch = pytest.importorskip("torch")

in_bf16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU computes no bf16 products"
)


def layers_of(number: int, dtype) -> list:
    """So many layers, from 24 numbers to 40."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return [torch.nn.Linear(24, 40).to(dtype) for _ in range(number)]


def rows_of(width: int, dtype):
    return torch.randn(7, width, generator=torch.Generator().manual_seed(3)).to(dtype)


DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=in_bf16)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("after", ["nothing", "gelu", "gelu_new", "relu"])
def test_a_product_is_what_the_layers_make_side_by_side(dtype, number, after):
    from transformers.activations import ACT2FN

    activation = None if after == "nothing" else ACT2FN[after]
    layers, rows = layers_of(number, dtype), rows_of(24, dtype)
    with torch.inference_mode():
        ours = product(*layers, after=activation)(rows)
        theirs = torch.cat([layer.float()(rows.float()) for layer in layers], 1)
        theirs = theirs if activation is None else activation(theirs)
    assert ours.dtype == dtype
    assert (ours.float() - theirs).abs().max() <= (1e-6 if dtype == torch.float32 else 0.01)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sum_is_the_product_and_the_others(dtype):
    (layer,), rows, others = layers_of(1, dtype), rows_of(24, dtype), rows_of(40, dtype)
    before = others.clone()
    with torch.inference_mode():
        ours = product_and_sum(layer)(rows, others)
        theirs = layer.float()(rows.float()) + others.float()
    assert (ours.float() - theirs).abs().max() <= (1e-6 if dtype == torch.float32 else 0.02)
    assert torch.equal(others, before)


@pytest.mark.parametrize(
    "lacking", ["_linear_pointwise", "binary", "_reorder_linear_weight", "all of oneDNN"]
)
def test_plain_weights_are_used_where_torch_lacks_the_operators(monkeypatch, lacking):
    (layer,), rows, others = (
        layers_of(1, torch.bfloat16),
        rows_of(24, torch.bfloat16),
        rows_of(40, torch.bfloat16),
    )
    names = {"_linear_pointwise", "_reorder_linear_weight"} - {lacking}
    there = SimpleNamespace(**{name: SimpleNamespace(binary=None) for name in names})
    if lacking == "binary":
        there._linear_pointwise = SimpleNamespace()
    monkeypatch.setattr(torch.ops, "mkldnn", there)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: lacking != "all of oneDNN")
    with torch.inference_mode():
        made = layer(rows)
        assert torch.equal(product(layer)(rows), made)
        assert torch.equal(product_and_sum(layer)(rows, others), made + others)


def takes_nothing(*_):
    raise TypeError("another signature")


def makes_something_else(rows, _, bias, *__):
    return rows.new_zeros(len(rows), len(bias))


def makes_something_longer(rows, _, bias, *__):
    return rows.new_zeros(len(rows), len(bias) + 1)


@in_bf16
@pytest.mark.parametrize("multiply", [takes_nothing, makes_something_else, makes_something_longer])
@pytest.mark.parametrize("when", ["laid out", "multiplied"])
def test_plain_weights_are_used_where_operators_are_not_as_expected(monkeypatch, caplog, multiply, when):
    _prepacked._tell.cache_clear()
    (layer,), rows, others = (
        layers_of(1, torch.bfloat16),
        rows_of(24, torch.bfloat16),
        rows_of(40, torch.bfloat16),
    )

    class Operator:
        def __call__(self, *given):
            return multiply(*given)

        def binary(self, rows, others, *_):
            return multiply(rows, None, others[0])

    there = SimpleNamespace(
        _linear_pointwise=Operator(),
        _reorder_linear_weight=takes_nothing if when == "laid out" else lambda weight, _: weight,
    )
    monkeypatch.setattr(torch.ops, "mkldnn", there)
    with torch.inference_mode():
        made = layer(rows)
        assert torch.equal(product(layer)(rows), made)
        assert torch.equal(product_and_sum(layer)(rows, others), made + others)
    assert "weights stay as they are" in caplog.text


@in_bf16
def test_operators_that_are_as_expected_are_used(caplog):
    _prepacked._tell.cache_clear()
    layers = layers_of(2, torch.bfloat16)
    laid_out, summed = product(*layers), product_and_sum(layers[0])
    for layer in layers:
        layer.weight.data.zero_()
    with torch.inference_mode():
        assert laid_out(rows_of(24, torch.bfloat16)).abs().max() > 1
        assert summed(rows_of(24, torch.bfloat16), rows_of(40, torch.bfloat16).zero_()).abs().max() > 1
    assert not caplog.records
