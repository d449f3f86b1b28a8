from __future__ import annotations

import json
import math
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.gateway.problems import Problem
from headrace.gateway.strict_json import MAX_DEPTH, decode

# Integers may have 4,300 digits; what hypothesis makes by itself stays far below.
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=30,
)


def refusal(body: bytes) -> str:
    with pytest.raises(Problem) as caught:
        decode(body)
    assert caught.value.code == "malformed-json"
    return caught.value.detail


@given(VALUES, st.booleans(), st.sampled_from([None, 2]))
def test_whatever_json_writes_is_read_back(value: Any, ascii_only: bool, indent: int | None) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    read = decode(body)
    assert read == value
    assert repr(read) == repr(json.loads(body))  # also tells 1 from 1.0 and 0.0 from -0.0


JSON_BYTES = st.lists(
    st.sampled_from([bytes([c]) for c in b'[]{},:"\\ue1.-+0tfnalsr \n\xff\xed\xa0']), max_size=30
)


@given(st.binary() | JSON_BYTES.map(b"".join))
@example(b'{"\xff":1}')
@example(b'"\\ud800')
@example(b"-")
def test_no_bytes_raise_anything_but_a_problem(body: bytes) -> None:
    value, problem = outcome(body)
    if problem is not None:
        assert problem.code == "malformed-json"
        assert len(problem.detail) < 300
    else:
        # What is let through is let through by a second, independent reader with the same meaning.
        assert json.loads(body) == value
        assert not any(isinstance(leaf, float) and not math.isfinite(leaf) for leaf in leaves(value))


def outcome(body: bytes) -> tuple[Any, Problem | None]:
    try:
        return decode(body), None
    except Problem as problem:
        return None, problem


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for child in value.values() for leaf in leaves(child)]
    if isinstance(value, list):
        return [leaf for child in value for leaf in leaves(child)]
    return [value]


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"", "empty"),
        (b" \r\n\t ", "empty"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"hello", "a value is expected here (line 1, column 1, byte 0)"),
        ("{}".encode("utf-16"), "a value is expected"),
        (b'{"a": 1', "ends inside an object"),
        (b"[1, 2", "ends inside an array"),
        (b'"abc', "ends inside a string"),
        (b'{"a":', "ends in the middle of a value"),
        (b"{} x", "something follows the value (line 1, column 4, byte 3)"),
        (b"{}{}", "something follows the value"),
        (b'{\n "a": 1,\n "b": NaN}', "NaN is not a JSON number (line 3, column 7, byte 17)"),
        (b"[Infinity]", "Infinity is not a JSON number"),
        (b"-Infinity", "-Infinity is not a JSON number"),
        (b"[1, 1e999]", "the number at /1 is out of range"),
        (b'{"a": [{"b/c": -1e999}]}', "the number at /a/0/b~1c is out of range"),
        (b"1e999", "the number at the top is out of range"),
        (b"1" + b"0" * 400 + b".0", "out of range"),
        (b'{"a": 1, "a": 2}', 'the key "a" twice'),
        (b'{"a": 1, "\\u0061": 2}', 'the key "a" twice'),
        (b'[{"x": {"a": 1, "a": 1}}]', 'the key "a" twice'),
        (b'{"' + b"k" * 10**5 + b'": 1, "' + b"k" * 10**5 + b'": 1}', "kkk… twice"),
        (b'"\\ud800"', "surrogate"),
        (b'"\\udc00"', "surrogate"),
        (b'"\\ud800\\u0041"', "surrogate"),
        (b'{"\\ud800": 1}', "surrogate"),
        (b'"\xed\xa0\x80"', "UTF-8"),
        (b'"\xff"', "UTF-8"),
        (b'"\xc0\x80"', "UTF-8"),
        (b'"\x01"', "control character"),
        (b"01", "invalid number"),
        (b"+1", "value is expected"),
        (b"[1,]", "trailing comma"),
        (b"[1] // note", "something follows"),
        (b"1" * 4301, "too many digits"),
        (b"[-" + b"9" * 10**6 + b"]", "too many digits"),
    ],
)
def test_what_is_refused_and_why(body: bytes, detail: str) -> None:
    assert detail in refusal(body)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_a_string_may_say_nan(text: str) -> None:
    assert decode(json.dumps(text).encode()) == text
    assert "key must be a string" in refusal(json.dumps([text]).encode()[:-1] + b", {x}]")


def test_a_surrogate_pair_is_one_character() -> None:
    assert decode(b'"\\ud83d\\ude00"') == "\N{GRINNING FACE}"


LARGEST = int(sys.float_info.max)


def test_an_integer_of_many_digits_is_exact() -> None:
    assert decode(b"%d" % LARGEST) == LARGEST
    assert decode(b"[-%d]" % LARGEST) == [-LARGEST]


@pytest.mark.parametrize("number", [LARGEST + 1, -LARGEST - 1, 10**399])
def test_an_integer_beyond_the_range_of_floats_is_refused(number: int) -> None:
    with pytest.raises(Problem) as caught:
        decode(b'{"a": [true, null, 1, {"b": %d}]}' % number)
    assert (caught.value.code, caught.value.status) == ("malformed-json", 400)
    assert "the number at /a/3/b is out of range" in str(caught.value.detail)


@pytest.mark.parametrize("before", range(25))
def test_a_row_of_digits_is_found_wherever_it_begins(before: int) -> None:
    body = b"[" + b" " * before + b"9" * 309 + b"]"
    with pytest.raises(Problem):
        decode(body)
    assert decode(body.replace(b"9" * 309, b"9" * 308)) == [int("9" * 308)]


def test_many_digits_that_are_no_integer_pass() -> None:
    digits = "1" * 400
    assert decode(f'["{digits}", 0.{digits}, {{"{digits}": 1}}]'.encode()) == [
        *(digits, float(f"0.{digits}"), {digits: 1})
    ]


@pytest.mark.parametrize("wrap", [(b"[", b"]", b""), (b'{"a":', b"}", b"0")], ids=["arrays", "objects"])
def test_depth_is_bounded_exactly(wrap: tuple[bytes, bytes, bytes]) -> None:
    opening, closing, leaf = wrap
    decode(opening * MAX_DEPTH + leaf + closing * MAX_DEPTH)
    for depth in (MAX_DEPTH + 1, 150, 200, 250, 10_000, 1_000_000):
        assert "100 levels" in refusal(opening * depth + leaf + closing * depth)
    assert "100 levels" in refusal(opening * 10_000)


def test_many_brackets_that_do_not_nest_are_fine() -> None:
    assert len(decode(b"[" + b"[],{}," * 1000 + b"0]")) == 2001
    assert decode(b'"' + b"[{" * 1000 + b'"') == "[{" * 1000
    assert decode(b'["' + b"[" * 1000 + b'"]') == ["[" * 1000]
