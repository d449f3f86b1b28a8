"""A function's signature, read once: its input, its output, and what is injected."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, get_origin, get_type_hints

from headrace.sdk.call import Call
from headrace.sdk.file import File
from headrace.sdk.models import Model, Uses
from headrace.sdk.places import Place

_STREAMS: Final = (Iterator, AsyncIterator, Generator, AsyncGenerator)


@dataclass(frozen=True, slots=True)
class Signature:
    """What a declaration's signature says.

    Args:
        input_type: the first parameter's type, resolved.
        output_type: the return type, resolved.
        call_parameter: the parameter that takes the running call, if any.
        models: the models to inject, by parameter.
    """

    input_type: Any
    output_type: Any
    call_parameter: str | None
    models: Mapping[str, Model[Any]]


def read_signature(fn: Callable[..., Any], place: Place, local_names: Mapping[str, Any]) -> Signature:
    """Read and check `fn`'s signature.

    Args:
        fn: the decorated function.
        place: named by every error.
        local_names: names besides the module's that annotations may use.

    Raises:
        DeclarationError: the signature isn't one of a plain function.
    """
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise place.not_yet("a body that yields")
    resolve = _Resolver(fn, place, local_names)
    signature = inspect.signature(fn)
    parameters = list(signature.parameters.values())
    if not parameters:
        raise place.error("input", "the function needs a first parameter, its input")
    first, *injected = parameters
    _check_input(first, place)
    call_parameter, models = _injected(injected, place, resolve)
    if signature.return_annotation is signature.empty:
        raise place.error("return", "has no type; annotate it (-> None for a function without a result)")
    output_type = resolve("return", signature.return_annotation)
    if get_origin(output_type) in _STREAMS or output_type in _STREAMS:
        raise place.not_yet("an iterator as the return type")
    return Signature(
        resolve(f"parameter {first.name!r}", first.annotation), output_type, call_parameter, models
    )


def _check_input(first: inspect.Parameter, place: Place) -> None:
    field = f"parameter {first.name!r}"
    if first.kind not in {first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD}:
        raise place.error(field, "the first parameter is the input, and must be an ordinary positional one")
    if first.annotation is first.empty:
        raise place.error(field, "has no type; annotate it")
    if isinstance(first.default, Uses):
        raise place.error(field, "the first parameter is the input; models are keyword-only, after a *")
    if first.default is not first.empty:
        raise place.error(field, "must have no default: every call has an input")


def _injected(
    parameters: list[inspect.Parameter], place: Place, resolve: _Resolver
) -> tuple[str | None, dict[str, Model[Any]]]:
    call_parameter: str | None = None
    models: dict[str, Model[Any]] = {}
    for parameter in parameters:
        field = f"parameter {parameter.name!r}"
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            raise place.error(
                field, "only named parameters can be injected, so * and ** ones are not allowed"
            )
        if parameter.kind is not parameter.KEYWORD_ONLY:
            raise place.error(field, "only the first parameter is positional; put a * before it")
        if parameter.annotation is parameter.empty:
            raise place.error(field, "has no type; annotate it")
        if isinstance(parameter.default, Uses):
            # Its annotation stays unread: the type may exist for type checkers only.
            models[parameter.name] = parameter.default.model
        elif resolve(field, parameter.annotation) is not Call:
            raise place.error(
                field, "nothing to inject; annotate it as Call, or give it the default uses(MODEL)"
            )
        elif parameter.default is not parameter.empty:
            raise place.error(field, "the running call is always given, so it must have no default")
        elif call_parameter is not None:
            raise place.error(field, f"the running call is given already, as {call_parameter!r}")
        else:
            call_parameter = parameter.name
    return call_parameter, models


class _Resolver:
    """Annotations to types, one at a time, so that one for type checkers only fails nothing else."""

    def __init__(self, fn: Callable[..., Any], place: Place, local_names: Mapping[str, Any]) -> None:
        self._place = place
        self._globals = inspect.unwrap(fn).__globals__
        # `Call` is known here even where it is imported for type checkers only, as linters like to have it.
        self._locals = {"Call": self._globals.get("Call", Call), **local_names}

    def __call__(self, field: str, annotation: Any) -> Any:
        holder = SimpleNamespace(__annotations__={"it": annotation})
        try:
            found = get_type_hints(holder, self._globals, self._locals, include_extras=True)["it"]
        except NameError as error:
            raise self._place.error(
                field,
                f"the type {_shown(annotation)} can't be resolved ({error}); define it or "
                "import it above the function, for run time too",
            ) from None
        except Exception as error:
            raise self._place.error(
                field, f"the type {_shown(annotation)} can't be resolved ({error})"
            ) from error
        if found is File:
            raise self._place.not_yet(f"File, in {field},")
        return found


def _shown(annotation: object) -> str:
    return repr(annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))
