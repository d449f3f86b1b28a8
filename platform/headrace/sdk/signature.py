"""A function's signature, read once: its input, its output, and what is injected."""

from __future__ import annotations

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from types import FunctionType, MethodType, SimpleNamespace, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from headrace.sdk.call import Call
from headrace.sdk.file import File
from headrace.sdk.models import Model, Uses
from headrace.sdk.places import Place

Kind = Literal["plain", "batched", "streaming"]
"""What a body takes and gives: one input and one output; lists of both; or one input and many items."""

_STREAMS: Final = (Iterator, Iterable, Generator)
_ASYNC_STREAMS: Final = (AsyncIterator, AsyncIterable, AsyncGenerator)
_LISTS: Final = (list, Sequence)

NO_ITEMS: Final = inspect.Signature.empty
"""In the place of an item's type: the body doesn't stream. None is a type, of items that are None."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a declaration's signature says.

    Args:
        input_type: the type of one call's input, resolved.
        output_type: the type of one call's output, resolved.
        item_type: the type of a stream's items; `NO_ITEMS` for what doesn't stream.
        call_parameter: the parameter that takes the running call, or the running calls of a batch, if any.
        models: the models to inject, by parameter.
        is_async: whether the body runs in the event loop.
    """

    input_type: Any
    output_type: Any
    item_type: Any
    call_parameter: str | None
    models: Mapping[str, Model[Any]]
    is_async: bool


def read_signature(
    fn: Callable[..., Any],
    place: Place,
    local_names: Mapping[str, Any],
    *,
    is_batched: bool = False,
    collect: Callable[..., Any] | None = None,
) -> Signature:
    """Read and check `fn`'s signature.

    Args:
        fn: the decorated function.
        place: named by every error.
        local_names: names besides the module's that annotations may use.
        is_batched: whether it takes a list of inputs.
        collect: joins the items of a stream; None where the body doesn't stream.

    Raises:
        DeclarationError: the signature isn't one of such a function.
    """
    resolve = _Resolver(fn, place, local_names)
    signature = inspect.signature(fn)
    parameters = list(signature.parameters.values())
    if not parameters:
        raise place.error("input", "the function needs a first parameter, its input")
    first, *injected = parameters
    _check_input(first, place)
    call_parameter, models = _injected(injected, place, resolve, is_batched=is_batched)
    if signature.return_annotation is signature.empty:
        raise place.error("return", f"has no type; {_missing_type(fn)}")
    returned = resolve("return", signature.return_annotation)
    streams = _is_stream(fn, returned)
    input_type = resolve(f"parameter {first.name!r}", first.annotation)
    item_type: Any = NO_ITEMS
    if is_batched:
        if streams:
            raise place.error("batch", "a body that yields can't be batched: leave out batch=")
        if collect is not None:
            raise place.error("collect", "joins what a body yields, and a batched one returns: leave it out")
        input_type = _element(input_type, f"parameter {first.name!r}", place)
        returned = _without_exceptions(_element(returned, "return", place), place)
    elif streams:
        if collect is None:
            raise place.error(
                "collect",
                "is missing: the body yields, so write collect=FUNCTION, which makes of the list of its "
                "items the result for callers that don't stream, or collect=list",
            )
        item_type = _item(fn, returned, place)
        returned = _collected(collect, item_type, place)
    elif collect is not None:
        raise place.error("collect", "joins what a body yields, and this one returns: leave it out")
    else:
        _check_holds_no_exception(returned, "return", place)
    is_async = inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn)
    return Signature(input_type, returned, item_type, call_parameter, models, is_async)


def _missing_type(fn: Callable[..., Any]) -> str:
    if inspect.isasyncgenfunction(fn):
        return "annotate it, as the body yields: -> AsyncIterator[ITEM]"
    if inspect.isgeneratorfunction(fn):
        return "annotate it, as the body yields: -> Iterator[ITEM]"
    return "annotate it (-> None for a function without a result)"


def _is_stream(fn: Callable[..., Any], returned: Any) -> bool:
    is_generator = inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)
    return is_generator or (get_origin(returned) or returned) in (*_STREAMS, *_ASYNC_STREAMS)


def _element(annotation: Any, field: str, place: Place) -> Any:
    """The type of the elements of a list."""
    arguments = get_args(annotation)
    if get_origin(annotation) not in _LISTS or len(arguments) != 1:
        what = "list[INPUT]" if field != "return" else "list[OUTPUT | Exception]"
        raise place.error(field, f"must be {what}, as the function is batched")
    return arguments[0]


def _without_exceptions(annotation: Any, place: Place) -> Any:
    """The type without `Exception`, which stands for an item that failed."""
    if get_origin(annotation) is Annotated:
        inner, *notes = get_args(annotation)
        return Annotated[_without_exceptions(inner, place), *notes]
    members: tuple[Any, ...] = get_args(annotation) if _is_union(annotation) else (annotation,)
    kept: list[Any] = []
    for member in members:
        if not _is_exception(member):
            kept.append(member if member is annotation else _without_exceptions(member, place))
        elif not issubclass(member, Exception):
            raise place.error(
                "return",
                f"{member.__name__} can't stand for an item that failed: write list[OUTPUT | Exception]",
            )
    if not kept:
        raise place.error("return", "has no type of an output that succeeded: write list[OUTPUT | Exception]")
    return Union[tuple(kept)]  # noqa: UP007 - of as many as there are


def _check_holds_no_exception(annotation: Any, field: str, place: Place) -> None:
    """Refuse what may be meant as that of a batched function: in all others an exception is raised."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    for member in get_args(annotation) if _is_union(annotation) else (annotation,):
        if _is_exception(member):
            raise place.error(
                field, f"{member.__name__} can't be written as JSON: leave it out of the type, and raise it"
            )


def _is_union(annotation: object) -> bool:
    return get_origin(annotation) in (Union, UnionType)


def _is_exception(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseException)


def _item(fn: Callable[..., Any], returned: Any, place: Place) -> Any:
    """The type of what a stream yields."""
    if inspect.iscoroutinefunction(fn):
        raise place.error("return", "an async function that streams must yield, not return an iterator")
    is_async = inspect.isasyncgenfunction(fn)
    expected = _ASYNC_STREAMS if is_async else _STREAMS
    arguments = get_args(returned)
    if (get_origin(returned) or returned) not in expected or not arguments:
        raise place.error(
            "return", f"must be {'Async' if is_async else ''}Iterator[ITEM], as the body yields"
        )
    _check_holds_no_exception(arguments[0], "return", place)
    return arguments[0]


def _collected(collect: Callable[..., Any], item_type: Any, place: Place) -> Any:
    """The type of what joins a stream's items."""
    if collect is list:
        return list[item_type]
    if getattr(collect, "__name__", "") == "join" and isinstance(getattr(collect, "__self__", None), str):
        return str  # "".join
    if not isinstance(collect, FunctionType | MethodType):
        what = getattr(collect, "__name__", None) or f"this {type(collect).__name__}"
        raise place.error("collect", f"must be a function with a return type: write one that calls {what}")
    if inspect.iscoroutinefunction(collect) or inspect.isasyncgenfunction(collect):
        raise place.error("collect", "must not be async: what it returns is the function's output")
    if inspect.isgeneratorfunction(collect):
        raise place.error("collect", "must not yield: what it returns is the function's output")
    try:
        inspect.signature(collect).bind([])
    except TypeError as error:
        raise place.error("collect", f"is called with one argument, the list of items ({error})") from None
    try:
        found = get_type_hints(collect, include_extras=True)
    except Exception as error:  # its types may be anywhere
        raise place.error("collect", f"its types can't be resolved ({error})") from None
    if "return" not in found:
        raise place.error(
            "collect", "has no return type; annotate it, as it is the type of the function's output"
        )
    _check_holds_no_exception(found["return"], "collect", place)
    return found["return"]


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
    parameters: list[inspect.Parameter], place: Place, resolve: _Resolver, *, is_batched: bool
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
        elif not _takes_running(found := resolve(field, parameter.annotation), is_batched=is_batched):
            if found is Call:
                raise place.error(field, "a batched function takes calls: list[Call]")
            words = "list[Call]" if is_batched else "Call"
            raise place.error(
                field, f"nothing to inject; annotate it as {words}, or give it the default uses(MODEL)"
            )
        elif parameter.default is not parameter.empty:
            raise place.error(field, "the running call is always given, so it must have no default")
        elif call_parameter is not None:
            raise place.error(field, f"the running call is given already, as {call_parameter!r}")
        else:
            call_parameter = parameter.name
    return call_parameter, models


def _takes_running(annotation: Any, *, is_batched: bool) -> bool:
    """Whether the type is that of the running call, or of the running calls of a batch."""
    if not is_batched:
        return annotation is Call
    return get_origin(annotation) in _LISTS and get_args(annotation) == (Call,)


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
