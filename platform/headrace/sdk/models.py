"""Models: what must be loaded before a function runs, declared apart so that functions can share it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from types import FunctionType
from typing import Any, Generic, Protocol, TypeVar, cast

from headrace.domain import FOREVER, parse_size
from headrace.sdk.device import Device
from headrace.sdk.places import Place

T = TypeVar("T")


class Model(Generic[T]):
    """A loader with what a runner must know to keep its result in memory. Made by `@model`.

    Args:
        loader: takes the device, returns the loaded model.
        keep_alive: seconds for which it stays loaded after its last use; FOREVER for always.
        memory: bytes that it needs, when known.
    """

    def __init__(self, loader: Callable[[Device], T], *, keep_alive: float, memory: int | None) -> None:
        self.loader = loader
        self.keep_alive = keep_alive
        self.memory = memory
        self.name = f"{loader.__module__}:{loader.__qualname__}"
        self.__doc__ = loader.__doc__

    def load(self, device: Device) -> T:
        """Run the loader. Whoever calls keeps the result: nothing is cached here."""
        return self.loader(device)

    def __repr__(self) -> str:
        return f"<Model {self.name}>"


class ModelDecorator(Protocol):
    """What `model(...)` returns."""

    def __call__(self, loader: Callable[[Device], T], /) -> Model[T]:
        """Declare `loader` as a model."""
        ...


def model(*misplaced: object, keep_alive: float = FOREVER, memory: int | str | None = None) -> ModelDecorator:
    """Declare a loader of a model: a function that takes a `Device` and returns what functions use.

    Import heavy libraries inside it.

    Args:
        misplaced: nothing belongs here; it is there to catch `@model` without parentheses.
        keep_alive: seconds for which it stays loaded after its last use, when it is loaded at its first;
            FOREVER loads it when its executor starts, and unloads it only for want of memory.
        memory: what it needs on its device, in bytes or as text such as "400MiB". Until it has been measured
            this much is set aside for it; a figure that is too small is told in the runner's log.
    """
    if misplaced:
        raise Place.of_caller("model").error(
            "", "takes options by name only, so write @model() above the loader"
        )

    def declare(loader: Callable[[Device], T], /) -> Model[T]:
        place = _check_loader(loader)
        _check_keep_alive(keep_alive, place)
        try:
            size = None if memory is None else parse_size(memory)
        except (ValueError, TypeError) as error:
            raise place.error("memory", str(error)) from None
        return Model(loader, keep_alive=float(keep_alive), memory=size)

    return declare


def _check_loader(loader: object) -> Place:
    if not isinstance(loader, FunctionType):
        raise Place.of_caller("model").error("", f"decorates a function, not {loader!r}")
    place = Place.of(loader, "model")
    if inspect.iscoroutinefunction(loader) or inspect.isgeneratorfunction(loader):
        raise place.error("loader", "must be a plain function that returns the loaded model")
    try:
        inspect.signature(loader).bind(Device())
    except TypeError:
        raise place.error("loader", "must take one argument, the device to load on") from None
    return place


def _check_keep_alive(keep_alive: object, place: Place) -> None:
    valid = (
        isinstance(keep_alive, int | float)
        and not isinstance(keep_alive, bool)
        and (keep_alive == FOREVER or 0 <= keep_alive < math.inf)
    )
    if not valid:
        raise place.error("keep_alive", f"must be FOREVER or seconds from 0, not {keep_alive!r}")


class Uses:
    """The default that marks a parameter as a model to be injected."""

    __slots__ = ("model",)

    def __init__(self, model: Model[Any]) -> None:
        self.model = model

    def __repr__(self) -> str:
        return f"uses({self.model.name})"


def uses(model: Model[T]) -> T:
    """Mark a keyword-only parameter of a function: the loaded model is passed there.

    Raises:
        DeclarationError: the argument isn't a model.
    """
    if not isinstance(cast("object", model), Model):
        hint = _hint(model)
        raise Place.of_caller("uses(...)").error("", f"takes what @model declared, not {model!r}{hint}")
    return cast("T", Uses(model))


def _hint(other: object) -> str:
    return f": put @model() above {other.__name__}" if isinstance(other, FunctionType) else ""
