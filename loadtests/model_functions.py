"""Two models of which the budget of `residency.py` holds one, made of what models are made of."""

from __future__ import annotations

from typing import Any

from headrace import Device, function, model, uses

MODEL_BYTES = 160 * 2**20
_PARTS = (2**16, 2**18, 2**20, 2**22)  # weights come in all sizes, on both sides of malloc's threshold
_WORDS = 50_000  # and a tokenizer is many small objects


def _fill() -> dict[str, Any]:
    weights: list[bytearray] = []
    left = MODEL_BYTES
    while left > 0:
        size = min(_PARTS[len(weights) % len(_PARTS)], left)
        weights.append(bytearray(b"\1") * size)
        left -= size
    return {"weights": weights, "words": {f"word {number}": number for number in range(_WORDS)}}


@model(keep_alive=3600, memory="180MiB")
def first(device: Device) -> dict[str, Any]:
    """One."""
    return _fill()


@model(keep_alive=3600, memory="180MiB")
def second(device: Device) -> dict[str, Any]:
    """The other."""
    return _fill()


@function()
def use_first(
    input: dict[str, int],  # noqa: A002 - the platform's word for it
    *,
    held: dict[str, Any] = uses(first),
) -> int:
    """A call of one."""
    return len(held["weights"])


@function()
def use_second(
    input: dict[str, int],  # noqa: A002 - the platform's word for it
    *,
    held: dict[str, Any] = uses(second),
) -> int:
    """A call of the other."""
    return len(held["weights"])
