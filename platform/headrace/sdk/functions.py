"""A declared function: what a runner runs and what gateways are told about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.domain import Manifest

if TYPE_CHECKING:
    from headrace.sdk.contract import Contract
    from headrace.sdk.models import Model
    from headrace.sdk.places import Place
    from headrace.sdk.signature import Signature

In = TypeVar("In")
Out = TypeVar("Out")


class Function(Generic[In, Out]):
    """A function with its contract. Made by `@function`; `fn` is the original, to be called in tests.

    Args:
        fn: the decorated function.
        signature: what it takes and what is injected.
        contract: its validators.
        manifest: what gateways are told.
        place: where it is declared.
        collect: joins the items of a stream.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        signature: Signature,
        contract: Contract[In, Out],
        manifest: Manifest,
        place: Place,
        collect: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self.fn = fn
        self.name = manifest.name
        self.manifest = manifest
        self.place = place
        self.is_async = signature.is_async
        self.is_batched = manifest.batch is not None
        self.is_streaming = manifest.item_schema is not None
        self.call_parameter = signature.call_parameter
        self.models: Mapping[str, Model[Any]] = MappingProxyType(dict(signature.models))
        self._contract = contract
        self._collect = collect
        self.__doc__ = fn.__doc__
        self.__name__ = fn.__name__
        self.__module__ = fn.__module__

    def decode(self, data: bytes) -> In:
        """The input that the JSON holds.

        Raises:
            InvalidInput: it doesn't satisfy the input type.
        """
        return self._contract.decode(data)

    def encode(self, output: Out) -> bytes:
        """Compact JSON of an output.

        Raises:
            InvalidOutput: it doesn't satisfy the output type, or JSON has no words for it.
        """
        return self._contract.encode(output)

    def encode_item(self, item: Any) -> bytes:
        """Compact JSON of an item of a stream; raises like `encode`."""
        return self._contract.encode_item(item)

    def encode_input(self, value: In) -> bytes:
        """Compact JSON of an input, for a call of this function.

        Raises:
            InvalidInput: it doesn't satisfy the input type, or JSON has no words for it.
        """
        return self._contract.encode_input(value)

    def decode_output(self, data: bytes) -> Out:
        """The output that the JSON holds.

        Raises:
            InvalidOutput: the output type doesn't read what it has written.
        """
        return self._contract.decode_output(data)

    def collect(self, items: list[Any]) -> Any:
        """The output that the items of a stream make; whatever the author's function raises."""
        assert self._collect is not None, "only what streams has items"
        return self._collect(items)

    def __call__(self, input: In, **injected: Any) -> Any:  # noqa: A002 - the platform's word
        """Run the body here and now, everything injected given by name. An async one gives a coroutine."""
        missing = self.models.keys() - injected.keys()
        if missing:
            raise TypeError(f"{self.name}() called directly needs {', '.join(sorted(missing))} by name")
        return self.fn(input, **injected)

    def __repr__(self) -> str:
        return f"<Function {self.name!r} at {self.place}>"
