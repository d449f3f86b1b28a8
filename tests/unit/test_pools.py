from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import pools

LABELS = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9_-]{0,39}", fullmatch=True),
    st.from_regex(r"[A-Za-z0-9._-]{1,63}", fullmatch=True),
    max_size=4,
)


@given(LABELS)
def test_labels_are_read_as_they_were_written(labels: dict[str, str]) -> None:
    text = pools.write_labels(labels)
    assert pools.read_labels(text) == labels
    assert list(pools.read_labels(text)) == sorted(labels)


@pytest.mark.parametrize(
    "text",
    ["gpu", "gpu=", "=h200", "gpu=h200,", ",", "Gpu=h200", "gpu=h 200", "gpu=h200,gpu=b200", "gpu==h200"],
)
def test_what_are_no_labels(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not allowed: key=value,\.\.\. with each key once"):
        pools.read_labels(text)


def test_labels_have_a_bound() -> None:
    many = {f"k{number}": "v" for number in range(32)}
    assert pools.read_labels(pools.write_labels(many)) == many
    with pytest.raises(ValueError, match="at most 32 labels"):
        pools.read_labels(pools.write_labels({**many, "one-more": "v"}))


@pytest.mark.parametrize(("text", "wish"), [("gpu", "gpu"), ("z=1, gpu=H200", "gpu=H200,z=1")])
def test_a_wish_is_a_name_or_labels(text: str, wish: str) -> None:
    assert pools.read_wish(text) == wish


@pytest.mark.parametrize("text", ["", "*", "GPU", "a b", "n" * 41, "gpu,large"])
def test_what_is_no_wish(text: str) -> None:
    with pytest.raises(ValueError, match=r"1 to 40 characters, .*; or labels, key=value"):
        pools.read_wish(text)


@pytest.mark.parametrize(
    ("wish", "pool", "labels", "served"),
    [
        ("default", "default", {}, True),
        ("default", "gpu", {}, False),
        ("gpu", "gpu", {}, True),
        ("gpu", "default", {"gpu": "gpu"}, False),
        ("gpu=h200", "default", {"gpu": "h200"}, True),
        ("gpu=h200", "anything", {"gpu": "h200", "zone": "a"}, True),
        ("gpu=h200,zone=a", "default", {"gpu": "h200"}, False),
        ("gpu=h200", "default", {"gpu": "b200"}, False),
        ("gpu=h200", "*", {}, True),
        ("gpu", "*", {}, True),
    ],
)
def test_who_serves_what(wish: str, pool: str, labels: dict[str, str], *, served: bool) -> None:
    assert pools.serves(wish, pool, labels) is served
