"""The decorator `@function`, with a type for every shape of function."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, Concatenate, Protocol, TypeVar, Unpack, cast, overload

import msgspec

from headrace.domain import Batch, Manifest
from headrace.sdk.bytecode import fingerprint
from headrace.sdk.functions import Function
from headrace.sdk.options import (
    FunctionOptions,
    Options,
    check_batch,
    check_function_name,
    check_reserve,
    read_options,
)
from headrace.sdk.places import Place, caller
from headrace.sdk.signature import Signature, read_signature

if TYPE_CHECKING:
    from headrace.sdk.contract import Contract

In = TypeVar("In")
Out = TypeVar("Out")
Item = TypeVar("Item")
Item_contra = TypeVar("Item_contra", contravariant=True)


class PlainDecorator(Protocol):
    """For one input in, one output out."""

    @overload
    def __call__(
        self, fn: Callable[Concatenate[In, ...], Coroutine[Any, Any, Out]], /
    ) -> Function[In, Out]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[In, ...], Out], /) -> Function[In, Out]: ...


class BatchedDecorator(Protocol):
    """For a list of inputs in, a list of outputs out, an exception in the place of each that failed."""

    @overload
    def __call__(
        self, fn: Callable[Concatenate[list[In], ...], Coroutine[Any, Any, Sequence[Out | Exception]]], /
    ) -> Function[In, Out]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[list[In], ...], Sequence[Out | Exception]], /
    ) -> Function[In, Out]: ...


class StreamingDecorator(Protocol[Item_contra, Out]):
    """For one input in, a stream of items out, which are joined for callers that don't stream."""

    @overload
    def __call__(
        self, fn: Callable[Concatenate[In, ...], AsyncIterator[Item_contra]], /
    ) -> Function[In, Out]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[In, ...], Iterator[Item_contra]], /) -> Function[In, Out]: ...


@overload
def function(
    *, batch: None = None, collect: None = None, **options: Unpack[FunctionOptions]
) -> PlainDecorator: ...
@overload
def function(
    *, batch: Batch, collect: None = None, **options: Unpack[FunctionOptions]
) -> BatchedDecorator: ...
@overload
def function(
    *, batch: None = None, collect: Callable[[list[Item]], Out], **options: Unpack[FunctionOptions]
) -> StreamingDecorator[Item, Out]: ...
def function(
    *misplaced: object, batch: object = None, collect: object = None, **options: Unpack[FunctionOptions]
) -> Any:
    """Declare a function that clients can call: `POST /fn/NAME`.

    Its first parameter is the input. All others are keyword-only and injected: the running call, by the
    type `Call`, and models, by the default `uses(MODEL)`. Input and output may be pydantic models,
    dataclasses, TypedDicts, or anything else that pydantic can describe.

    Args:
        misplaced: nothing belongs here; it is there to catch `@function` without parentheses.
        batch: how calls are joined: the first parameter is then a list of inputs, and a list of as many
            outputs is returned, with an exception in the place of each that failed.
        collect: joins the items of a body that yields, for callers that don't stream: takes the list of them,
            returns the output. `list` gives them as they are.
        options: see `FunctionOptions`.

    Raises:
        DeclarationError: something is declared wrongly; the message names file, line, function and field.
    """
    if misplaced:
        raise Place.of_caller("function").error(
            "", "takes options by name only, so write @function() above the function"
        )

    def declare(fn: Callable[..., Any], /) -> Function[Any, Any]:
        if not isinstance(fn, FunctionType):
            raise Place.of_caller("function").error("", f"decorates a function, not {fn!r}")
        place = Place.of(fn, "function")
        if batch is not None and not isinstance(batch, Batch):
            raise place.error("batch", f"must be a Batch, not {batch!r}")
        if collect is not None and not callable(collect):
            raise place.error("collect", f"must be a function, not {collect!r}")
        names = caller().f_locals  # types may be local where a test declares a function
        return _declare(fn, read_options(options, place), place, names, batch, collect)

    return declare


def _declare(
    fn: FunctionType,
    options: Options,
    place: Place,
    names: Mapping[str, Any],
    batch: Batch | None,
    collect: Callable[[list[Any]], Any] | None,
) -> Function[Any, Any]:
    from headrace.sdk.contract import Contract  # noqa: PLC0415 - pydantic loads with the first declaration

    name = check_function_name(fn.__name__ if options.name is None else options.name, place)
    signature = read_signature(fn, place, names, is_batched=batch is not None, collect=collect)
    check_reserve(options, place, is_async=signature.is_async)
    if batch is not None:
        check_batch(batch, options, place)
    contract: Contract[Any, Any] = Contract(
        signature.input_type, signature.output_type, place, signature.item_type
    )
    contract.check_cost(options.cost, place)
    manifest = _manifest(fn, name, options, signature, contract, place, batch, collect)
    return Function(
        fn, signature=signature, contract=contract, manifest=manifest, place=place, collect=collect
    )


def _manifest(
    fn: FunctionType,
    name: str,
    options: Options,
    signature: Signature,
    contract: Contract[Any, Any],
    place: Place,
    batch: Batch | None,
    collect: Callable[[list[Any]], Any] | None,
) -> Manifest:
    from headrace.sdk.schemas import interface_hash, short_hash  # noqa: PLC0415 - it imports pydantic

    manifest = Manifest(
        name=name,
        interface=interface_hash(contract.input_schema, contract.output_schema, contract.item_schema),
        revision="",
        description=inspect.getdoc(fn) or "",
        input_schema=contract.input_schema,
        output_schema=contract.output_schema,
        budget=options.budget,
        limits=options.limits,
        attempts=options.attempts,
        concurrency=options.concurrency,
        cost=options.cost,
        pool=options.pool,
        examples=contract.checked_examples(options.examples, place),
        reserve=options.reserve,
        batch=batch,
        item_schema=contract.item_schema,
    )
    code = [cast("FunctionType", model.loader) for model in signature.models.values()]
    if isinstance(collect, FunctionType):
        code.append(collect)
    return msgspec.structs.replace(manifest, revision=short_hash([manifest, fingerprint(fn, *code)]))
