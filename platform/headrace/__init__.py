"""Headrace: a self-hosted, serverless-style platform for AI functions.

What a function's author needs is here; importing it loads no heavy library.
"""

from __future__ import annotations

from headrace.sdk import (
    FOREVER,
    Batch,
    Budget,
    Call,
    Cost,
    Device,
    File,
    Function,
    InvalidInput,
    InvocationError,
    Limits,
    PermanentError,
    TransientError,
    function,
    model,
    uses,
)

__all__ = [
    "FOREVER",
    "Batch",
    "Budget",
    "Call",
    "Cost",
    "Device",
    "File",
    "Function",
    "InvalidInput",
    "InvocationError",
    "Limits",
    "PermanentError",
    "TransientError",
    "__version__",
    "function",
    "model",
    "uses",
]

__version__: str  # read from the installed distribution when asked for


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    from importlib.metadata import version  # noqa: PLC0415 - costs more than all the rest of this module

    return version("headrace")
