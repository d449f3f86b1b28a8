from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.link import frames
from headrace.link.frames import Call, Frame, Hello, Pong, Result, Service

KINDS = get_args(Frame)

# msgpack has 64 bits for an integer, and msgspec refuses text that isn't UTF-8.
st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))
st.register_type_strategy(str, st.text(st.characters(exclude_categories=["Cs"])))
st.register_type_strategy(float, st.floats(allow_nan=False))


@st.composite
def any_frame(draw: st.DrawFn) -> Frame:
    kind = draw(st.sampled_from(KINDS))
    fields = msgspec.structs.fields(kind)
    return kind(*(draw(st.from_type(field.type)) for field in fields))


@given(any_frame())
def test_a_frame_survives_the_wire(frame: Frame) -> None:
    assert frames.decode(frames.encode(frame)) == frame


LATER = st.lists(st.none() | st.integers(0, 9) | st.binary() | st.lists(st.booleans()), min_size=1)


@given(any_frame(), LATER)
def test_fields_of_a_later_version_are_ignored(frame: Frame, later: list[object]) -> None:
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(frames.encode(frame)), *later])
    assert frames.decode(longer) == frame


@pytest.mark.parametrize("kind", KINDS)
def test_fields_that_an_earlier_version_lacks_take_their_defaults(kind: type[Frame]) -> None:
    fields = msgspec.structs.fields(kind)
    needed = {field.name: _sample(field.type) for field in fields if field.required}
    shortest = kind(**needed)
    array = msgspec.msgpack.decode(frames.encode(shortest))[: 1 + len(needed)]
    assert frames.decode(msgspec.msgpack.encode(array)) == shortest


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_that_lacks_a_needed_field_is_refused(kind: type[Frame]) -> None:
    needed = [field for field in msgspec.structs.fields(kind) if field.required]
    tag = kind.__struct_config__.tag
    if needed:
        with pytest.raises(msgspec.ValidationError):
            frames.decode(msgspec.msgpack.encode([tag, *(_sample(field.type) for field in needed[:-1])]))
    with pytest.raises(msgspec.MsgspecError):
        frames.decode(msgspec.msgpack.encode([]))


def test_services_inside_a_hello_may_grow_too() -> None:
    hello = ["HELLO", 1, b"n" * 32, b"", "r1", [["echo", "abc", 2, "", "later", 7], ["embed", "def", 1]]]
    assert frames.decode(msgspec.msgpack.encode(hello)) == Hello(
        1, b"n" * 32, b"", "r1", (Service("echo", "abc", 2), Service("embed", "def", 1))
    )


def test_an_unknown_tag_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        frames.decode(msgspec.msgpack.encode(["WINK", "job"]))


def test_a_wrong_type_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        frames.decode(msgspec.msgpack.encode(["RESULT", "job", "not bytes", 1, 0.0, 0.0]))


def test_defaults_are_not_shared_between_frames() -> None:
    Pong().loads["echo"] = 3
    assert Pong().loads == {}


def test_the_wire_names_of_version_1() -> None:
    """What an installed peer sends and reads; a change here breaks it."""
    assert frames.VERSION == 1
    assert {kind.__struct_config__.tag: kind.__struct_fields__ for kind in KINDS} == {
        "HELLO": ("version", "nonce", "proof", "runner_id", "services", "hands_over"),
        "PING": (),
        "PONG": ("loads", "draining", "degraded", "means", "capacity"),
        "CALL": (
            *("job_id", "function", "interface", "input", "owner", "attempt"),
            *(
                "remaining_ms",
                "wait_ms",
                "request_id",
                "traceparent",
                "digest",
                "key",
                "alone",
                "cost",
                "credit",
            ),
        ),
        "REFUSED": ("job_id", "reason", "load", "retry_after_s", "detail"),
        "STARTED": ("job_id", "attempt"),
        "ITEM": ("job_id", "sequence", "item"),
        "PROGRESS": ("job_id", "fraction", "message"),
        "CREDIT": ("job_id", "items"),
        "RESULT": ("job_id", "output", "attempt", "queue_ms", "exec_ms", "load", "mean_s", "cost_s"),
        "ERROR": (
            *("job_id", "category", "message", "attempt", "queue_ms", "exec_ms"),
            *("retryable", "errors", "load", "retry_after_s"),
        ),
        "LOST": ("job_id", "attempt", "charged", "load", "suspect"),
        "DUPLICATE": ("job_id", "original_id"),
        "HANDOVER": (
            *("job_id", "key_id", "digest", "cost", "weight", "queue_s", "charged"),
            "accepted_ms",
        ),
        "HANDED": ("job_id", "withdrawn"),
        "FENCED": ("job_id",),
        "STOP": ("job_id",),
    }


def test_a_call_is_small() -> None:
    call = Call("0" * 36, "echo", "0" * 16, b"{}", "0" * 36, 1, 1000, 250)
    result = Result("0" * 36, b"{}", 1, 0.5, 0.5)
    assert len(frames.encode(call)) < 160
    assert len(frames.encode(result)) < 90


def _sample(kind: object) -> object:
    return {str: "text", int: 1, float: 0.5, bool: False, bytes: b"bytes"}[kind]  # type: ignore[index]
