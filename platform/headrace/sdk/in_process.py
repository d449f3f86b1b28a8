"""A function's body run where it is called from: how `Call.invoke` works in a test, without a site."""

from __future__ import annotations

import inspect
import time
import uuid
from typing import TYPE_CHECKING, Any, TypeVar, cast

from headrace.errors import (
    DeclarationError,
    InvalidInput,
    InvalidOutput,
    InvocationError,
    PermanentError,
    TransientError,
)

if TYPE_CHECKING:
    from headrace.sdk.call import Call
    from headrace.sdk.functions import Function

In = TypeVar("In")
Out = TypeVar("Out")


async def run_here(caller: Call, function: Function[In, Out], value: In) -> Out:
    """The output of a function, through the same checks and errors as on a site; limits aren't kept.

    Args:
        caller: whose time it has.
        function: one without models, as there is nobody to load them.
        value: its input.

    Raises:
        InvocationError: as on a site.
        DeclarationError: the function uses models: give the test's `Call` an `invoke` of its own.
    """
    if function.models:
        raise DeclarationError(
            f"{function.name} uses models, which only a runner loads: in a test, give Call(invoke=...) what "
            "stands for it"
        )
    now = time.monotonic()
    deadline_at = now + caller.remaining()
    soft_at = now + function.manifest.budget.soft_limit
    call = type(caller)(job_id=str(uuid.uuid4()), attempt=1, soft_at=soft_at, deadline_at=deadline_at)
    try:
        decoded = function.decode(function.encode_input(value))
        return function.decode_output(function.encode(await _output(function, decoded, call)))
    except InvalidInput as error:
        found = ((error.path, error.message),)
        raise InvocationError(function.name, "invalid-input", error.message, errors=found) from error
    except InvalidOutput as error:
        raise InvocationError(function.name, "invalid-output", str(error)) from error
    except PermanentError as error:
        raise InvocationError(function.name, "function-failed", str(error)) from error
    except TransientError as error:
        message = "The function failed for now."
        raise InvocationError(function.name, "attempts-exhausted", message) from error


async def _output(function: Function[In, Out], decoded: In, call: Call) -> Out:
    injected: dict[str, Any] = {}
    if function.call_parameter is not None:
        injected[function.call_parameter] = [call] if function.is_batched else call
    given: Any = function.fn([decoded] if function.is_batched else decoded, **injected)
    if function.is_streaming:
        items = [item async for item in given] if function.is_async else list(given)
        return cast("Out", function.collect(items))
    output = await given if inspect.isawaitable(given) else given
    if function.is_batched:
        (output,) = output
        if isinstance(output, Exception):
            raise output
    return output
