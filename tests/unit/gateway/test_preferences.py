from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gateway import preferences
from headrace.gateway.openapi_parts import PARAMETERS
from headrace.gateway.preferences import Preferences
from headrace.gateway.problems import Problem


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, Preferences()),
        (b"", Preferences()),
        (b" , ,", Preferences()),
        (b"respond-async", Preferences(respond_async=True)),
        (b"Respond-Async", Preferences(respond_async=True)),
        (b'respond-async=""', Preferences(respond_async=True)),
        (b"wait=10", Preferences(wait=10)),
        (b"wait = 10", Preferences(wait=10)),
        (b'wait="10"', Preferences(wait=10)),
        (b'wait="1\\0"', Preferences(wait=10)),
        (b"WAIT=0", Preferences(wait=0)),
        (b"respond-async, wait=5", Preferences(respond_async=True, wait=5)),
        (b"wait=5,respond-async", Preferences(respond_async=True, wait=5)),
        (b"wait=5, wait=9", Preferences(wait=5)),
        (b"respond-async; x=1; y", Preferences(respond_async=True)),
        (b'return=minimal; foo="some, wait=3; parameter", wait=4', Preferences(wait=4)),
        (b'foo="a\\"b, wait=1"', Preferences()),
        (b"handling=strict,, respond-async ;", Preferences(respond_async=True)),
        (b"waiting=1", Preferences()),
    ],
)
def test_prefer(value: bytes | None, expected: Preferences) -> None:
    assert preferences.prefer(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        b"wait",
        b"wait=",
        b"wait=ten",
        b"wait=-1",
        b"wait=1.5",
        b"wait=" + b"9" * 5000,
        b"respond-async=yes",
        b"=",
        b"a b",
        b"; wait=1",
        b"wait=1; =",
        b'x="open',
        b'x="open\\"',
        b"x=\xff",
        b"wait=(1)",
    ],
)
def test_malformed_prefer(value: bytes) -> None:
    with pytest.raises(Problem) as caught:
        preferences.prefer(value)
    assert caught.value.code == "malformed-header"
    assert "`Prefer`" in caught.value.detail


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (b"30", 30.0),
        (b"2.5", 2.5),
        (b"0.001", 0.001),
        (b"1e3", 1000.0),
        (b"0.30000000000000004", 0.30000000000000004),
        (b"999999999", 999999999.0),
    ],
)
def test_deadline(value: bytes | None, expected: float | None) -> None:
    assert preferences.deadline(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"0",
        b"0.0",
        b"-1",
        b"1e9",
        b"1e999",
        b"1e-999",
        b"nan",
        b"inf",
        b"1_0",
        b"ten",
        b"1,2",
        b"1" * 500,
        b"\xb2",
    ],
)
def test_malformed_deadline(value: bytes) -> None:
    with pytest.raises(Problem) as caught:
        preferences.deadline(value)
    assert caught.value.code == "malformed-header"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (b"a", "a"),
        (b'"a"', "a"),
        (b' "a" ', "a"),
        (b"8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        (b'"' + b"x" * 255 + b'"', "x" * 255),
        (b"x" * 255, "x" * 255),
        (b'"' + b'\\"' * 255 + b'"', '"' * 255),
        (b'"a\\"\\\\b,c"', 'a"\\b,c'),
        (b"a\\b;c=~!", "a\\b;c=~!"),
    ],
)
def test_idempotency_key(value: bytes | None, expected: str | None) -> None:
    assert preferences.idempotency_key(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" ",
        b'""',
        b'"',
        b'"a',
        b'a"',
        b'"a"b',
        b'"a" "b"',
        b"a, b",
        b"a,b",
        b'"a", "b"',
        b'"a b"',
        b"a b",
        b"a\tb",
        b'"a\\b"',
        b'"a\\"',
        b"\xe9",
        b"a\n",
        b"\x7f",
        b"x" * 256,
        b'"' + b"x" * 256 + b'"',
        b'"a";b=1',
    ],
)
def test_malformed_idempotency_key(value: bytes) -> None:
    with pytest.raises(Problem) as caught:
        preferences.idempotency_key(value)
    assert caught.value.code == "malformed-header"
    assert "`Idempotency-Key`" in caught.value.detail


def test_the_documented_pattern_is_what_is_read() -> None:
    pattern = re.compile(PARAMETERS["Idempotency-Key"]["schema"]["pattern"])

    @settings(max_examples=300)
    @given(
        st.text(st.sampled_from('a"\\,; ~!'), max_size=8)
        | st.text(st.characters(max_codepoint=127), max_size=3)
    )
    def agrees(text: str) -> None:
        is_read = True
        try:
            preferences.idempotency_key(text.encode())
        except Problem:
            is_read = False
        key = text.strip(" \t")
        assert is_read == (pattern.search(key) is not None and not key.endswith("\n"))

    agrees()


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), (b"low", "low"), (b"Normal", "normal"), (b" HIGH ", "high")],
)
def test_priority(value: bytes | None, expected: str | None) -> None:
    assert preferences.priority(value) == expected


@pytest.mark.parametrize("value", [b"", b"urgent", b"1", b"high, low", b'"high"', b"h\xefgh"])
def test_malformed_priority(value: bytes) -> None:
    with pytest.raises(Problem) as caught:
        preferences.priority(value)
    assert caught.value.code == "malformed-header"
    assert "`low`, `normal`, `high`" in caught.value.detail


@pytest.mark.parametrize(
    ("value", "expected"), [(None, True), (b"never", False), (b" Never\t", False), (b"NEVER", False)]
)
def test_whether_a_job_is_an_answer(value: bytes | None, expected: bool) -> None:
    assert preferences.takes_job(value) == expected


@pytest.mark.parametrize("value", [b"", b"always", b"0", b"never, never", b'"never"'])
def test_nothing_else_can_be_said_of_it(value: bytes) -> None:
    with pytest.raises(Problem) as caught:
        preferences.takes_job(value)
    assert caught.value.code == "malformed-header"
    assert "`never`" in caught.value.detail


@pytest.mark.parametrize("value", [b"a", b"x" * 128, b"0af7651916cd43dd8448eb211c80319c", b"a/b:c=!~"])
def test_a_clients_request_id_is_kept(value: bytes) -> None:
    assert preferences.request_id(value) == value.decode()


@pytest.mark.parametrize("value", [None, b"", b"x" * 129, b"a b", b"\xe9", b"a\tb", b"a\n", b"\x7f"])
def test_otherwise_a_request_gets_a_new_id(value: bytes | None) -> None:
    made = preferences.request_id(value)
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", made)
    assert preferences.request_id(value) != made


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"*/*",
        b"application/json",
        b"Application/JSON; charset=utf-8",
        b"application/*",
        b"text/html, application/xhtml+xml, */*;q=0.8",
        b"text/html, image/gif, *; q=.2, */*; q=.2",
        b"text/event-stream, application/json",
        b"application/json;q=0.001",
        b"*/*;q=0, application/json",
        b"application/*;q=0, application/json;q=0.5",
        b'text/plain; note="a, b", */*',
        b"nonsense, application/json",
    ],
)
def test_acceptable(value: bytes | None) -> None:
    preferences.check_accept(value)
    assert not preferences.wants_events(value)


@pytest.mark.parametrize(
    "value",
    [
        b"text/event-stream",
        b"Text/Event-Stream; charset=utf-8",
        b"text/event-stream, */*",
        b"text/event-stream, application/*",
        b"text/event-stream;q=0.9, text/html",
        b"text/event-stream;q=0.5, application/json;q=0.4",
        b"application/json;q=0, text/event-stream;q=0.1, */*",
        b"text/event-stream;q=0.001",
    ],
)
def test_a_client_that_wants_events(value: bytes) -> None:
    assert preferences.wants_events(value)


@pytest.mark.parametrize(
    "value",
    [
        b"text/event-stream;q=0.9, application/json",
        b"application/json;q=0.5, text/event-stream;q=0.5",
        b"text/event-stream;q=0, */*",
        b"text/event-stream;q=0.5, application/*",
        b"text/*, application/json;q=0.1",
    ],
)
def test_a_client_that_could_take_events_and_likes_json_as_well(value: bytes) -> None:
    assert not preferences.wants_events(value)


@pytest.mark.parametrize(
    "value",
    [
        b"text/event-stream;q=0",
        b"text/event-stream;q=1.5",
        b"text/html",
        b"text/*",
        b"application/xml",
        b"application/json;q=0",
        b"application/json;q=0.000, */*",
        b"application/*;q=0, */*",
        b"*/*;q=0",
        b"application/jsonp",
        b"application/problem+json",
        b"nonsense",
    ],
)
def test_not_acceptable(value: bytes) -> None:
    for check in (preferences.check_accept, preferences.wants_events):
        with pytest.raises(Problem) as caught:
            check(value)
        assert caught.value.code == "not-acceptable"


@pytest.mark.parametrize(
    "value",
    [
        b"application/json",
        b"application/json;charset=utf-8",
        b"application/json; charset=UTF-8",
        b'APPLICATION/JSON ; charset="utf-8"',
        b"application/json;",
        b"application/problem+json",
        b"application/vnd.example.v1+json; profile=x",
    ],
)
def test_json_content_types(value: bytes) -> None:
    preferences.check_content_type(value)


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        (None, "no `Content-Type`"),
        (b"", "no `Content-Type`"),
        (b"text/plain", "`text/plain` is not JSON"),
        (b"application/x-www-form-urlencoded", "is not JSON"),
        (b"application/jsonp", "is not JSON"),
        (b"application/+json", "is not JSON"),
        (b"application/", "is not JSON"),
        (b"json", "is not JSON"),
        (b'application/json; charset="utf-8', "is not JSON"),
        (b"application/json; charset=latin-1", "charset `latin-1`"),
        (b"application/json, text/plain", "is not JSON"),
        (b"x" * 5000, "…"),
    ],
)
def test_other_content_types(value: bytes | None, detail: str) -> None:
    with pytest.raises(Problem) as caught:
        preferences.check_content_type(value)
    assert caught.value.code == "unsupported-media-type"
    assert caught.value.headers["Accept"] == "application/json"
    assert detail in caught.value.detail
    assert len(caught.value.detail) < 250


@pytest.mark.parametrize("value", [None, b"", b"identity", b"Identity "])
def test_an_uncompressed_body_is_taken(value: bytes | None) -> None:
    preferences.check_content_encoding(value)


def test_a_compressed_body_is_refused() -> None:
    with pytest.raises(Problem) as caught:
        preferences.check_content_encoding(b"gzip")
    assert caught.value.status == 415
    assert caught.value.headers["Accept-Encoding"] == "identity"


HEADER_BYTES = st.lists(
    st.sampled_from(
        [b"wait", b"q", b"=", b";", b",", b'"', b"\\", b" ", b"/", b"*", b"1", b"\xe9", b"application/json"]
    )
).map(b"".join)


@given(st.binary(max_size=60) | HEADER_BYTES)
def test_no_header_raises_anything_but_a_problem(value: bytes) -> None:
    for read in (
        preferences.prefer,
        preferences.deadline,
        preferences.idempotency_key,
        preferences.priority,
        preferences.takes_job,
        preferences.request_id,
        preferences.check_accept,
        preferences.wants_events,
        preferences.check_content_type,
        preferences.check_content_encoding,
    ):
        with contextlib.suppress(Problem):
            read(value)


def test_a_long_hostile_header_is_read_in_linear_time() -> None:
    # Quadratic reading of these would take minutes and fail by the suite's timeout.
    for piece in (b'"\\', b'a="b",', b"a;", b'"', b"a=", b"*,", b" "):
        for read in (
            preferences.prefer,
            preferences.idempotency_key,
            preferences.wants_events,
            preferences.check_content_type,
        ):
            with contextlib.suppress(Problem):
                read(piece * 60_000)
