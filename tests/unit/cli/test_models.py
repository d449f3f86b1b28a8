"""How models are named at the command line, and what is told of them."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from headrace.capacity import Capacity, DeviceStanding, ModelStanding, Report, encoded
from headrace.cli._models import document, end_of_load, listed, said, wanted_models
from headrace.cli._sizes import size
from headrace.errors import HeadraceError
from headrace.runner_requests import ModelAnswer

FIRST = "1aaaaaaa-0000-4000-8000-0000000000b1"
SECOND = "1bbbbbbb-0000-4000-8000-0000000000a2"
NOW = 1_800_000_000.0


def standing(model: str, **fields: Any) -> ModelStanding:
    return ModelStanding(model=model, device="cpu", **fields)


def report(*models: ModelStanding, functions: tuple[str, ...] = ("embed", "echo")) -> Report:
    device = DeviceStanding(device="cpu", budget=2**30, used=2**28)
    return Report(functions=dict.fromkeys(functions, Capacity()), models=models, devices=(device,))


ENCODER = standing("shop:encoder", size=95_000_000, load_s=1.25, used_at=NOW - 12, functions=("embed",))
WRITER = standing("shop:writer", executor=-1, state="unloaded", functions=("write",))
HERE = report(ENCODER, WRITER)
THERE = report(ENCODER)


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("shop:encoder", {"shop:encoder": [FIRST, SECOND]}),
        ("writer", {"shop:writer": [FIRST]}),
        ("embed", {"shop:encoder": [FIRST, SECOND]}),
    ],
)
def test_models_are_meant_by_their_own_names_or_by_a_function(
    name: str, models: dict[str, list[str]]
) -> None:
    assert wanted_models({FIRST: HERE, SECOND: THERE}, name) == models


OTHERS = report(standing("yard:encoder"))


@pytest.mark.parametrize(
    ("reports", "name", "why"),
    [
        ({}, "encoder", "no runner lives, or none has told of its models yet"),
        ({FIRST: HERE}, "fish", "there is no model or function 'fish'; models: shop:encoder, shop:writer"),
        ({FIRST: report()}, "fish", "there is no model or function 'fish'; no function uses a model"),
        ({FIRST: HERE}, "echo", "the function echo uses no model"),
        ({FIRST: HERE, SECOND: OTHERS}, "encoder", "'encoder' may be any of shop:encoder, yard:encoder"),
    ],
)
def test_a_name_that_means_nothing_or_too_much_is_told(
    reports: dict[str, Report], name: str, why: str
) -> None:
    with pytest.raises(HeadraceError) as raised:
        wanted_models(reports, name)
    assert str(raised.value) == why


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        ("loaded", "model m is loaded in runner ..000000b1 already"),
        ("loading", "model m is to be loaded in runner ..000000b1; it took 1.5 s the last time"),
        ("absent", "model m isn't loaded in runner ..000000b1"),
        ("unloading", "model m is unloaded in runner ..000000b1"),
        (
            "in-use",
            "model m is in use in runner ..000000b1: it goes after 2 calls, and no other starts before",
        ),
    ],
)
def test_what_becomes_of_a_model_is_told(
    outcome: Literal["loaded", "loading", "absent", "unloading", "in-use"], told: str
) -> None:
    assert said("m", FIRST, ModelAnswer(outcome=outcome, load_s=1.5, users=2)) == told


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "runner ..000000b1 hasn't answered within 5 s: frozen, lost, or"),
        (ModelAnswer(outcome="unknown"), "no function in runner ..000000b1 uses model m"),
        (
            ModelAnswer(outcome="too-large", reason="it needs 9 bytes"),
            "model m can't be loaded in runner ..000000b1: it needs 9 bytes",
        ),
    ],
)
def test_what_cannot_be_done_is_an_error(answer: ModelAnswer | None, why: str) -> None:
    with pytest.raises(HeadraceError) as raised:
        said("m", FIRST, answer)
    assert str(raised.value).startswith(why)


def test_a_load_is_followed_to_its_end() -> None:
    waits = report(standing("m", executor=-1, state="waiting"))
    loads = report(standing("m", state="loading"))
    failed = report(standing("m", executor=-1, state="failed", reason="model m could not be loaded: no disk"))
    gone = report(standing("m", executor=-1, state="unloaded"), standing("n", in_use=1))
    loaded = report(standing("m", executor=1, size=3 * 2**20, load_s=2.0))
    for news in (False, True):
        assert end_of_load("m", FIRST, waits, is_news=news) is None
        assert end_of_load("m", FIRST, loads, is_news=news) is None
    assert end_of_load("m", FIRST, loaded, is_news=True) == (
        "model m is loaded in runner ..000000b1, executor 1, on cpu: 3.0 MiB in 2.0 s"
    )
    for stale in (loaded, failed, gone):  # of the time before
        assert end_of_load("m", FIRST, stale, is_news=False) is None
    with pytest.raises(
        HeadraceError, match=r"^model m could not be loaded: no disk \(in runner \.\.000000b1\)$"
    ):
        end_of_load("m", FIRST, failed, is_news=True)
    with pytest.raises(
        HeadraceError, match=r"for want of room: 256 MiB of 1.0 GiB on cpu are taken; in use: n$"
    ):
        end_of_load("m", FIRST, gone, is_news=True)
    with pytest.raises(HeadraceError, match="has left, or was lost"):
        end_of_load("m", FIRST, None, is_news=False)


def test_models_and_memory_are_listed() -> None:
    used = standing("shop:encoder", executor=1, size=95_000_000, declared=400 * 2**20, in_use=3)
    broken = standing("shop:bro\x1bken", executor=-1, state="failed", reason="it\x1bs broken")
    lines = listed({FIRST: report(ENCODER, used, broken)}, None, NOW).splitlines()
    assert [" ".join(line.split()) for line in lines[1:4]] == [
        f"{FIRST} 0 cpu shop:encoder loaded 90.6 MiB - 12 s ago 1.2 s embed",
        f"{FIRST} 1 cpu shop:encoder loaded 90.6 MiB 400 MiB by 3 now - -",
        rf"{FIRST} - cpu shop:bro\x1bken failed - - - - -",
    ]
    assert [line.split() for line in lines[5:7]] == [
        ["RUNNER", "DEVICE", "TAKEN", "BUDGET"],
        [FIRST, "cpu", "256", "MiB", "1.0", "GiB"],
    ]
    assert lines[-1] == r"..000000b1: it\x1bs broken"
    narrow = listed({FIRST: HERE}, 80, NOW).splitlines()
    assert max(map(len, narrow)) <= 80
    assert "no function uses a model" in listed({FIRST: report()}, None, NOW)
    assert listed({}, None) == "no runner lives, or none has told of its models yet"


def test_programs_get_all_of_it() -> None:
    (runner,) = document({FIRST: HERE})
    assert (runner["runner_id"], runner["devices"][0]["budget"]) == (FIRST, 2**30)
    assert [one["model"] for one in runner["models"]] == ["shop:encoder", "shop:writer"]


def test_a_report_that_would_be_too_long_leaves_out_what_is_least_needed() -> None:
    many = report(*(standing(f"m{number}") for number in range(100)), functions=("embed",))
    whole = encoded(many, 10**6)
    assert encoded(many, len(whole)) == whole
    assert b'"models":[]' in encoded(many, len(whole) - 1)
    assert len(encoded(many, 200)) <= 200


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (99.9 * 2**20, "99.9 MiB"), (141 * 2**30, "141 GiB")],
)
def test_sizes_are_read_easily(count: float, text: str) -> None:
    assert size(count) == text
