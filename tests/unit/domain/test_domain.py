from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.domain import FOREVER, LANE_NAME, Batch, Budget, Cost, Limits, Manifest, parse_size

# ---------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("given_size", "size"),
    [
        (1, 1),
        (2**40, 2**40),
        ("1", 1),
        ("1B", 1),
        ("64 KiB", 65536),
        ("1MiB", 2**20),
        ("1.5GiB", 3 * 2**29),
        ("1kb", 1000),
        ("2 mb", 2_000_000),
        ("3GB", 3 * 10**9),
        ("  16MIB ", 2**24),
        ("0.5KiB", 512),
        ("999999999999999", 999999999999999),
    ],
)
def test_sizes(given_size: int | str, size: int) -> None:
    assert parse_size(given_size) == size


@pytest.mark.parametrize(
    "wrong",
    [
        *(0, -1, "0", "0MiB", "0.1B", "-1", "", " ", "MiB", "1TiB", "1 M", "1e3", "one", "1,5MiB", "1.MiB"),
        *(".5MiB", "0x10", "1MiB1", "9" * 400, 1.5, 1.0, True, math.nan, None, b"1MiB"),
    ],
)
def test_what_is_no_size_is_a_value_error(wrong: Any) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size(wrong)


@given(st.text() | st.from_regex(r"\d+(\.\d+)?\s*[kmgKMG]?i?[bB]?", fullmatch=True))
def test_any_text_is_a_positive_size_or_a_value_error(text: str) -> None:
    try:
        size = parse_size(text)
    except ValueError:
        return
    assert type(size) is int
    assert size > 0


@given(st.integers(1, 10**12))
def test_bytes_are_exact(size: int) -> None:
    assert parse_size(str(size)) == parse_size(f"{size}B") == parse_size(size) == size
    assert parse_size(f"{size}KiB") == size * 1024


# ---------------------------------------------------------------------- budgets, limits, batches


def test_the_default_budget() -> None:
    budget = Budget()
    assert (budget.sync, budget.queue, budget.hard, budget.margin) == (10, 60, 30, 15)
    assert budget.soft_limit == 20
    assert budget.total == 105


@given(st.floats(0.001, 10**6), st.floats(0.001, 10**6))
def test_the_soft_limit_is_within_the_hard_one(soft: float, hard: float) -> None:
    assert 0 < Budget(hard=hard).soft_limit < hard
    if soft <= hard:
        assert Budget(soft=soft, hard=hard).soft_limit == soft
    else:
        with pytest.raises(ValueError, match="must not be over hard"):
            Budget(soft=soft, hard=hard)


@pytest.mark.parametrize("field", ["sync", "queue", "soft", "hard", "margin"])
@pytest.mark.parametrize("value", [0, -1, math.inf, -math.inf, math.nan, 10**9, "10", True])
def test_a_duration_is_a_positive_number(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} must be a positive number of seconds"):
        Budget(**{field: value})


def test_what_is_declared_cannot_be_changed() -> None:
    for declared, field in ((Budget(), "hard"), (Limits(), "input"), (Batch(max_cost=1), "max_cost")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(declared, field, 1)
    assert Budget() == Budget()
    assert len({Budget(), Budget(), Limits(), Limits()}) == 2


def test_limits() -> None:
    assert (Limits().input, Limits().output) == (2**20, 2**24)
    assert (Limits(input="16KiB", output=7).input, Limits(input="16KiB", output=7).output) == (16384, 7)
    with pytest.raises(ValueError, match=r"^input: "):
        Limits(input="huge")
    with pytest.raises(ValueError, match=r"^output: "):
        Limits(output=0)
    with pytest.raises(ValueError, match=r"^output: "):
        Limits(output=1.5)  # type: ignore[arg-type]


def test_batches() -> None:
    assert (Batch(max_cost=64).max_cost, Batch(max_cost=64).max_wait) == (64, 0.005)
    assert Batch(max_cost=1, max_wait=0).max_wait == 0
    wrong: Any
    for wrong in (0, -1, math.inf, math.nan, "8", None, True):
        with pytest.raises(ValueError, match=r"^max_cost must be a positive number, not"):
            Batch(max_cost=wrong)
    for wrong in (-1, math.inf, math.nan, 10**9, "x", None, True):
        with pytest.raises(ValueError, match=r"^max_wait must be a number of seconds from 0, not"):
            Batch(max_cost=1, max_wait=wrong)


# ---------------------------------------------------------------------- costs


INPUT = {"texts": ["ab", "cde", 7], "n": 3, "flag": True, "deep": {"list": [1, 2], "text": "four"}, "x.y": 1}


@pytest.mark.parametrize(
    ("cost", "price"),
    [
        (Cost(), 1),
        (Cost.items("texts"), 3),
        (Cost.items("deep.list"), 2),
        (Cost.items("deep.text"), 0),  # a text isn't a list
        (Cost.items("n"), 0),
        (Cost.chars("texts"), 5),
        (Cost.chars("deep.text"), 4),
        (Cost.chars("n"), 0),
        (Cost.value("n"), 3),
        (Cost.value("flag"), 0),
        (Cost.value("deep"), 0),
        (Cost.value("nowhere.at.all"), 0),
        (Cost.value("texts.0"), 0),
        (Cost.items("texts", 2.5), 7.5),
        (Cost.items("texts") + Cost.chars("texts", 0.1) + Cost.value("n"), 6.5),
        (Cost.value("n", -5), 0),  # never negative
        (Cost.items("texts") + Cost.value("n", -5), 0),
    ],
)
def test_costs(cost: Cost, price: float) -> None:
    assert cost.of(INPUT) == price


def test_the_input_itself_is_the_empty_path() -> None:
    assert Cost.items("").of(["a", "bc"]) == 2
    assert Cost.chars("").of("abc") == 3
    assert Cost.value("").of(4) == 4
    assert Cost.value("").of(None) == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=20,
)
COSTS = st.builds(
    lambda terms: sum(terms[1:], terms[0]),
    st.lists(
        st.builds(
            lambda make, path, weight: make(path, weight),
            st.sampled_from([Cost.items, Cost.chars, Cost.value]),
            st.sampled_from(["", "a", "a.b", "c"]),
            st.floats(-10, 10),
        ),
        min_size=1,
        max_size=3,
    ),
)


@given(COSTS, JSON)
def test_every_input_has_a_cost(cost: Cost, value: Any) -> None:
    assert cost.of(value) >= 0


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_a_number_beyond_floats_has_a_cost_too(value: int) -> None:
    assert Cost.value("n").of({"n": value}) >= 0


@given(COSTS)
def test_a_cost_travels_as_data(cost: Cost) -> None:
    assert msgspec.json.decode(msgspec.json.encode(cost), type=Cost) == cost


def test_a_manifest_travels_as_data() -> None:
    manifest = Manifest(
        name="echo",
        interface="1234",
        revision="5678",
        description="Answers.",
        input_schema={"type": "object"},
        output_schema={},
        budget=Budget(soft=3),
        limits=Limits(input="2KiB"),
        attempts=2,
        concurrency=3,
        cost=Cost.items("texts") + Cost(),
        pool="default",
        examples=[{"a": 1}],
    )
    assert msgspec.convert(msgspec.to_builtins(manifest), Manifest) == manifest


@pytest.mark.parametrize("name", ["a", "embed", "a-b_c9", "a" * 40])
def test_lane_names(name: str) -> None:
    assert LANE_NAME.fullmatch(name)


@pytest.mark.parametrize("name", ["", "A", "9a", "-a", "_a", "a b", "a.b", "ä", "a" * 41, "a\n"])
def test_no_lane_names(name: str) -> None:
    assert not LANE_NAME.fullmatch(name)


def test_forever_is_no_duration() -> None:
    assert FOREVER < 0
