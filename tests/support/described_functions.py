"""Functions with rich schemas, for tests that know no more than the OpenAPI document; two never succeed."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from headrace import Limits, PermanentError, function


class Place(BaseModel):
    """A place on Earth."""

    latitude: float = Field(ge=-90, le=90)
    longitude: float = Field(ge=-180, le=180)


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(9, ge=0, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    home: Place | None = None


class Tree(BaseModel):
    """Branches all the way down."""

    label: str = Field(max_length=20)
    branches: list[Tree] = Field([], max_length=3)


class Order(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    size: Literal["small", "large"] = "small"
    names: list[Annotated[str, Field(min_length=1, max_length=10)]] = Field(min_length=1, max_length=4)
    tree: Tree | None = None
    stops: dict[str, Place] = {}
    count: int = Field(1, ge=-(2**31), lt=2**31)
    number: UUID | None = None
    code: str = Field("A1", pattern="^[A-Z][0-9]$")


class Receipt(BaseModel):
    order: Order
    label: str
    made_at: datetime


@function(
    limits=Limits(input="64KiB"),
    examples=[
        {"pet": {"kind": "cat", "lives": 7}, "names": ["Minka"]},
        {"pet": {"kind": "dog"}, "names": ["Rex"]},
    ],
)
def order(input: Order) -> Receipt:
    """Takes an order, and returns it with a receipt."""
    return Receipt(order=input, label=", ".join(input.names), made_at=datetime.fromtimestamp(0).astimezone())


@function()
def length(input: str) -> int:
    """The characters of a text."""
    return len(input)


@function(name="first-of")
def first_of(input: list[float | None]) -> float | None:
    """The first number of a list."""
    return next((number for number in input if number is not None), None)


@function()
def fail(input: Place) -> Place:
    """Fails whatever it is sent."""
    raise PermanentError(f"there is nothing at {input.latitude:g}, {input.longitude:g}")


@function(attempts=1)
def crash(input: Place) -> Place:
    """Takes its process with it."""
    os._exit(3)
