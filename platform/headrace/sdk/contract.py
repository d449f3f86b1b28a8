"""A function's contract: JSON to its input, its output to JSON, checked both ways.

No message holds a value of an input or an output: prompts stay out of errors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from types import GenericAlias
from typing import Any, Final, Generic, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError, from_json, to_jsonable_python

from headrace.domain import Cost
from headrace.errors import HeadraceError, InvalidInput, InvalidOutput
from headrace.sdk.places import Place
from headrace.sdk.schemas import compiled, input_schema, output_schema
from headrace.sdk.signature import NO_ITEMS

In = TypeVar("In")
Out = TypeVar("Out")

# Applies to types without a configuration of their own: plain dataclasses, which check nothing when they
# are made, lists, numbers. Pydantic's own models were checked when they were made.
_STRICT_OUTPUT: Final = ConfigDict(revalidate_instances="always", allow_inf_nan=False)
_RAISED: Final = {"iteration_error", "get_attribute_error", "mapping_type"}
"""Errors whose text quotes an exception that the output itself raised."""


class Contract(Generic[In, Out]):
    """The validators and schemas of one function.

    Raises:
        DeclarationError: a type has no schema, or one that can't be checked.
    """

    def __init__(self, input_type: Any, output_type: Any, place: Place, item_type: Any = NO_ITEMS) -> None:
        self._input: TypeAdapter[In]
        self._input, self.input_schema = _described("input type", input_type, input_schema, place)
        self._output = _Written("output type", output_type, place)
        self.output_schema = self._output.schema
        self._item = None if item_type is NO_ITEMS else _Written("item type", item_type, place)
        self.item_schema = None if self._item is None else self._item.schema
        try:
            self._accepts = compiled(self.input_schema)
        except ValueError as error:
            reason = str(error).partition("\n")[0]
            raise place.error("input type", f"its JSON Schema can't be checked: {reason}") from None

    def decode(self, data: bytes) -> In:
        """The input that the JSON holds, validated in lax mode.

        Raises:
            InvalidInput: it doesn't satisfy the input type.
        """
        try:
            return self._input.validator.validate_json(data)
        except ValidationError as error:
            path, message = _first(error, data)
            raise InvalidInput(message, path=path) from None

    def encode(self, output: Any) -> bytes:
        """Compact JSON of an output.

        Raises:
            InvalidOutput: it doesn't satisfy the output type, or JSON has no words for it.
        """
        return self._output.encode(output)

    def encode_item(self, item: Any) -> bytes:
        """Compact JSON of an item of a stream; raises like `encode`."""
        assert self._item is not None, "only what streams has items"
        return self._item.encode(item)

    def encode_input(self, value: Any) -> bytes:
        """Compact JSON of an input that `decode` takes.

        Raises:
            InvalidInput: it isn't of the input type, or JSON has no words for it.
        """
        whole = self._written(value, exclude_unset=False)
        try:
            self.decode(whole)  # what the type checks where an instance is made may have been changed since
        except InvalidInput:
            # A type may look at which of its fields are given, as where just one of two may be.
            given = self._written(value, exclude_unset=True)
            self.decode(given)
            return given
        return whole

    def _written(self, value: Any, *, exclude_unset: bool) -> bytes:
        try:
            return self._input.dump_json(value, by_alias=True, exclude_unset=exclude_unset, warnings="error")
        except (PydanticSerializationError, ValueError, RecursionError):
            raise InvalidInput("the value can't be written as the declared input type") from None

    def decode_output(self, data: bytes) -> Any:
        """The output that the JSON holds, as `encode` wrote it.

        Raises:
            InvalidOutput: it doesn't satisfy the output type, which then reads something else than it writes.
        """
        return self._output.decode(data)

    def checked_examples(self, examples: Iterable[Any], place: Place) -> list[Any]:
        """The examples as plain JSON values.

        Raises:
            DeclarationError: one isn't an input of the function.
        """
        checked: list[Any] = []
        for index, example in enumerate(examples):
            field = f"examples[{index}]"
            try:
                value = to_jsonable_python(example, by_alias=True, inf_nan_mode="constants")
                data = json.dumps(value, allow_nan=False)
                self._accepts.validate(value)
                self._input.validate_json(data)
            except ValidationError as error:
                details = _details(error)[0]
                raise place.error(field, _located(_pointer(details["loc"]), details["msg"])) from None
            except (ValueError, PydanticSerializationError) as error:
                raise place.error(field, str(error).partition("\n")[0]) from None
            checked.append(value)
        return checked

    def check_cost(self, cost: Cost, place: Place) -> None:
        """Raises a DeclarationError when a path leads nowhere: such a cost would be 0 for every input."""
        for term in cost.terms:
            if not _leads_somewhere(term.path, self.input_schema):
                raise place.error("cost", f"the input has no {term.path!r}{_fields(self.input_schema)}")


class _Written:
    """A type that a body gives, as it is checked and written.

    Args:
        field: what it is, for errors.
        type_: the type.
        place: of the declaration.
    """

    def __init__(self, field: str, type_: Any, place: Place) -> None:
        self._adapter, self.schema = _described(field, type_, output_schema, place)
        # In a tuple, because pydantic takes a configuration only beside types that can't have their own.
        boxed: Any = GenericAlias(tuple, (type_,))
        self._checked: TypeAdapter[tuple[Any]] = TypeAdapter(boxed, config=_STRICT_OUTPUT)

    def encode(self, value: Any) -> bytes:
        """Compact JSON of a value; raises as `Contract.encode` says."""
        try:
            # The adapter's own methods put some 20 arguments in between, which takes a fifth of the time.
            (value,) = self._checked.validator.validate_python((value,))
            data = self._adapter.serializer.to_json(value, by_alias=True, warnings="error")
            if _may_hide_non_finite(data):
                self._check_finite(value)
        except ValidationError as error:
            details = _details(error)[0]
            raise InvalidOutput(_located(_pointer(details["loc"][1:]), _message(details))) from None
        except (PydanticSerializationError, ValueError, RecursionError):
            raise InvalidOutput("the returned value can't be written as the declared type") from None
        return data

    def decode(self, data: bytes) -> Any:
        """What `encode` wrote; raises as `Contract.decode_output` says."""
        try:
            return self._adapter.validate_json(data)
        except ValidationError as error:
            details = _details(error)[0]
            raise InvalidOutput(_located(_pointer(details["loc"]), _message(details))) from None

    def _check_finite(self, value: Any) -> None:
        path = _non_finite(self._adapter.dump_python(value, by_alias=True), "")
        if path is not None:
            raise InvalidOutput(_located(path, "NaN and infinite numbers have no JSON"))


def _described(
    field: str, type_: Any, describe: Any, place: Place
) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(type_)
        return adapter, describe(adapter)
    except HeadraceError as error:
        raise place.error(field, str(error)) from None
    except Exception as error:  # a type's own hooks may raise anything
        reason = " ".join(str(error).partition("\n\nFor further information")[0].split())
        raise place.error(field, f"pydantic can't describe it: {reason}") from error


def _details(error: ValidationError) -> list[ErrorDetails]:
    return error.errors(include_url=False, include_input=False)


def _first(error: ValidationError, data: bytes) -> tuple[str, str]:
    details = _details(error)
    first = details[0]
    if first["type"] == "json_invalid":
        return "", "the input is not valid JSON"
    return _path_in(data, first), _message(first) + (
        f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    )


def _message(details: ErrorDetails) -> str:
    if details["type"] in _RAISED:
        return "reading the value raised an exception"
    if details["type"] == "union_tag_invalid":  # pydantic's own words quote the input
        context = details.get("ctx", {})
        return f"{context.get('discriminator')} must be one of {context.get('expected_tags')}"
    return details["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")


def _path_in(data: bytes, details: ErrorDetails) -> str:
    """The error's place in the input; pydantic's own also names branches of unions, which no input has."""
    found: Any = from_json(data)
    path: list[int | str] = []
    for part in details["loc"]:
        if isinstance(found, dict) and part in found:
            found = cast("dict[Any, Any]", found)[part]
        elif isinstance(found, list) and isinstance(part, int) and part < len(cast("list[Any]", found)):
            found = cast("list[Any]", found)[part]
        elif not (details["type"] == "missing" and part == details["loc"][-1]):
            continue
        path.append(part)
    return _pointer(path)


def _pointer(path: Iterable[int | str]) -> str:
    """RFC 6901."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _located(path: str, message: str) -> str:
    return f"at {path}: {message}" if path else message


def _may_hide_non_finite(data: bytes) -> bool:
    """Whether the JSON can come from NaN or infinity: pydantic writes `null` or, where told to, their names.

    Looking for a letter first is a hundred times faster than for a word, and numbers have no letters.
    """
    return (
        (b"u" in data and b"null" in data)
        or (b"N" in data and b"NaN" in data)
        or (b"I" in data and b"Infinity" in data)
    )


def _non_finite(value: Any, path: str) -> str | None:
    """The place of the first number that JSON can't hold."""
    if isinstance(value, float):
        return None if math.isfinite(value) else path
    children: Iterable[tuple[Any, Any]]
    if isinstance(value, dict):
        children = cast("dict[Any, Any]", value).items()
    elif isinstance(value, list | tuple | set | frozenset):
        children = enumerate(cast("list[Any]", value))
    else:
        return None
    found = (_non_finite(child, path + _pointer([key])) for key, child in children)
    return next((place for place in found if place is not None), None)


def _fields(root: dict[str, Any]) -> str:
    """What an input has, for who has named something else."""
    schema = root
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    names = list(schema.get("properties", {}))
    return f"; its fields are {', '.join(names)}" if names else ""


def _leads_somewhere(path: str, root: dict[str, Any]) -> bool:
    """False only when the schema rules the path out."""
    schema: Any = root
    for part in filter(None, path.split(".")):
        while "$ref" in schema:
            schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
        properties = schema.get("properties", {})
        if part in properties:
            schema = properties[part]
        else:
            return schema.get("additionalProperties") is not False and schema.get("type") in {None, "object"}
    return True
