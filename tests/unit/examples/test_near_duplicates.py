"""Signatures against the exact similarity, and what `near_duplicates` leaves out."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.near_duplicates import BANDS, ROWS, Texts, jaccard, near_duplicates, shingles, signature
from headrace import Call
from headrace.errors import CallStopped

pytest.importorskip("numpy")

TEXTS = st.lists(st.text("ab ", min_size=1, max_size=30), min_size=1, max_size=12)


def call(reports: list[tuple[float, str]] | None = None) -> Call:
    end = time.monotonic() + 60
    told = [] if reports is None else reports
    return Call(
        job_id="j", attempt=1, soft_at=end, deadline_at=end, report=lambda *report: told.append(report)
    )


@pytest.mark.parametrize("shared", [0, 20, 100, 160, 190, 200])
def test_signatures_agree_as_often_as_sets_are_alike(shared: int) -> None:
    """Within five standard deviations of a mean over 20 pairs, 128 numbers each."""
    draw = random.Random(shared)
    agreed: list[float] = []
    exact = shared / (400 - shared)
    for _ in range(20):
        pieces = [f"{draw.getrandbits(64):x}" for _ in range(400 - shared)]
        left, right = set(pieces[:200]), set(pieces[200 - shared :])
        assert jaccard(left, right) == pytest.approx(exact)
        agreed.append(float((signature(left) == signature(right)).mean()))
    assert sum(agreed) / 20 == pytest.approx(
        exact, abs=5 * (exact * (1 - exact) / (20 * BANDS * ROWS)) ** 0.5
    )


@settings(max_examples=50, deadline=None)
@given(TEXTS, st.sampled_from([0.5, 0.8, 1.0]))
def test_what_is_left_out_is_exactly_as_similar_as_is_said(texts: list[str], threshold: float) -> None:
    output = near_duplicates(Texts(texts=texts, threshold=threshold), call=call())
    assert sorted([*output.kept, *(one.index for one in output.duplicates)]) == list(range(len(texts)))
    for one in output.duplicates:
        assert one.of in output.kept
        assert one.of < one.index
        assert one.similarity == jaccard(shingles(texts[one.of]), shingles(texts[one.index])) >= threshold


@settings(max_examples=50, deadline=None)
@given(TEXTS)
def test_of_equal_texts_only_the_first_is_kept(texts: list[str]) -> None:
    output = near_duplicates(Texts(texts=texts, threshold=1), call=call())
    seen: list[set[str]] = []
    for index, text in enumerate(texts):
        assert (index in output.kept) == (shingles(text) not in seen)
        seen.append(shingles(text))


def test_case_and_spaces_make_no_difference() -> None:
    texts = ["The mill stands still.", "the  MILL\nstands still. "]
    assert near_duplicates(Texts(texts=texts, threshold=1), call=call()).kept == [0]


def test_it_tells_how_far_it_is_and_ends_when_it_is_stopped() -> None:
    reports: list[tuple[float, str]] = []
    near_duplicates(Texts(texts=[f"text {n}" for n in range(201)]), call=call(reports))
    assert reports == [
        (0, "0 of 201 texts"),
        (100 / 201, "100 of 201 texts"),
        (200 / 201, "200 of 201 texts"),
    ]

    stopped = call()
    stopped.stop()
    with pytest.raises(CallStopped):
        near_duplicates(Texts(texts=["a", "b"]), call=stopped)
