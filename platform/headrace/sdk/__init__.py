"""What authors of functions import: the decorators, budgets, models, the running call and its device."""

from headrace.domain import FOREVER, Batch, Budget, Cost, Limits
from headrace.errors import InvalidInput, InvocationError, PermanentError, TransientError
from headrace.sdk.call import Call
from headrace.sdk.decorators import function
from headrace.sdk.device import Device
from headrace.sdk.file import File
from headrace.sdk.functions import Function
from headrace.sdk.models import Model, model, uses

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
    "Model",
    "PermanentError",
    "TransientError",
    "function",
    "model",
    "uses",
]
