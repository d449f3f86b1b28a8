"""Inputs are found in a body wherever it is cut."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway import strict_json
from headrace.gateway.batch_reader import ArraySplitter, LineSplitter, Splitter
from headrace.gateway.problems import Problem

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('a"\\,[]{}\n ü\U0001f600', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('k"]\\', max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


def split(splitter: Splitter, pieces: Iterable[bytes]) -> list[bytes]:
    found = [one for piece in pieces for one in splitter.feed(piece)]
    return found + list(splitter.end())


def cut(body: bytes, size: int) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


def refusal(splitter: Splitter, body: bytes, size: int = 1) -> str:
    with pytest.raises(Problem) as caught:
        split(splitter, cut(body, size))
    return caught.value.code


@given(st.lists(VALUES, max_size=5), st.integers(1, 40), st.sampled_from(["", " ", "\n\t"]), st.booleans())
def test_elements_are_found_wherever_the_body_is_cut(
    values: list[Any], size: int, blank: str, is_ascii: bool
) -> None:
    texts = [json.dumps(value, ensure_ascii=is_ascii, indent=len(blank) or None) for value in values]
    body = f"{blank}[{blank}{f'{blank},{blank}'.join(texts)}{blank}]{blank}".encode()
    found = split(ArraySplitter(1000), cut(body, size))
    assert found == [text.encode() for text in texts]


@given(
    st.lists(VALUES, max_size=5),
    st.integers(1, 40),
    st.sampled_from(["\n", "\r\n", "\n \n\n"]),
    st.booleans(),
)
def test_lines_are_found_wherever_the_body_is_cut(
    values: list[Any], size: int, between: str, is_ended: bool
) -> None:
    texts = [json.dumps(value, ensure_ascii=False) for value in values]
    body = (between.join(texts) + between * is_ended).encode()
    assert split(LineSplitter(1000), cut(body, size)) == [text.encode() for text in texts]


def is_array(body: bytes) -> bool:
    try:
        return isinstance(strict_json.decode(body), list)
    except Problem:
        return False


@given(st.text('[]{}",:\\ 1a', max_size=12).map(str.encode), st.integers(1, 12))
def test_a_body_splits_into_json_exactly_when_it_is_an_array(body: bytes, size: int) -> None:
    try:
        values = [strict_json.decode(one) for one in split(ArraySplitter(1000), cut(body, size))]
    except Problem:
        assert not is_array(body)
    else:
        assert values == strict_json.decode(body)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "malformed-json"),
        (b" \n", "malformed-json"),
        (b"[", "malformed-json"),
        (b"[1", "malformed-json"),
        (b"[1,", "malformed-json"),
        (b'["a', "malformed-json"),
        (b'["a\\', "malformed-json"),
        (b"[1,]", "malformed-json"),
        (b"[,1]", "malformed-json"),
        (b"[1,,2]", "malformed-json"),
        (b"[1}2]", "malformed-json"),
        (b"[1]]", "malformed-json"),
        (b"[1] 2", "malformed-json"),
        (b"[1]\x00", "malformed-json"),
        (b"\xef\xbb\xbf[1]", "malformed-json"),
        (b'{"texts": []}', "invalid-input"),
        (b"1", "invalid-input"),
        (b"garbage", "invalid-input"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 100])
def test_what_is_no_array_is_refused(body: bytes, code: str, size: int) -> None:
    assert refusal(ArraySplitter(100), body, size if size > 2 or b"\xef" not in body else 3) == code


@pytest.mark.parametrize("kind", [ArraySplitter, LineSplitter])
def test_a_large_input_is_refused_before_it_has_ended(kind: type[ArraySplitter] | type[LineSplitter]) -> None:
    splitter = kind(100)
    start = b'[1, "' if kind is ArraySplitter else b'1\n"'
    assert list(splitter.feed(start)) == [b"1"]
    fed: list[bytes] = []

    def feed_without_end() -> None:
        while len(fed) < 1000:
            fed.append(b"x" * 1000)
            list(splitter.feed(fed[-1]))

    with pytest.raises(Problem, match="Item 1 is over the function's limit of 100 bytes") as caught:
        feed_without_end()
    assert len(fed) < 100
    assert (caught.value.code, caught.value.headers["Connection"]) == ("payload-too-large", "close")


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_limit_is_exact_and_blanks_do_not_count(size: int) -> None:
    largest = b'"%b"' % (b"x" * 98)
    array = b"[ 1 \n,\n  %b   \n , %b ]" % (largest, largest)
    assert split(ArraySplitter(100), cut(array, size)) == [b"1", largest, largest]
    assert split(LineSplitter(100), cut(b"  %b  \r\n\n%b" % (largest, largest), size)) == [largest] * 2
    larger = b'"%b"' % (b"x" * 99)
    assert refusal(ArraySplitter(100), b"[%b]" % larger, size) == "payload-too-large"
    assert refusal(LineSplitter(100), larger, size) == "payload-too-large"


@pytest.mark.parametrize("start", [b"[1,", b"[1, [2,", b"[" + b" " * 2**19])
def test_a_large_input_that_comes_byte_by_byte_is_not_copied_for_each(start: bytes) -> None:
    splitter = ArraySplitter(2**20)
    list(splitter.feed(start))
    list(splitter.feed(b"9" * 2**19))
    peaks: list[int] = []
    tracemalloc.start()
    try:
        for _ in range(5):  # one of them may enlarge what it is kept in
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            list(splitter.feed(b"9"))
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    assert sorted(peaks)[3] < 2**14


def test_blanks_in_front_of_an_input_do_not_count_once_it_has_begun() -> None:
    splitter, blanks = ArraySplitter(100), b" " * 2**20
    assert list(splitter.feed(b"[" + blanks + b"7")) == []
    assert list(splitter.feed(b"7," + blanks + b'"a')) == [b"77"]
    assert list(splitter.feed(b'b",' + blanks)) == [b'"ab"']
    assert list(splitter.feed(b"8]" + blanks)) == [b"8"]


def test_blanks_without_end_are_not_kept() -> None:
    for splitter, start in ((ArraySplitter(100), b"[1,"), (LineSplitter(100), b"1\n")):
        assert list(splitter.feed(start)) == [b"1"]
        for _ in range(100):
            assert list(splitter.feed(b" \n" * 2**15)) == []
    assert refusal(ArraySplitter(100), b"[1" + b" " * 2**17 + b"]", 2**14) == "payload-too-large"
