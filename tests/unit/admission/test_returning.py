from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.admission import back_s, mended_s

SECONDS = st.floats(0, 1e6)


@pytest.mark.parametrize(
    ("away_s", "load_s", "expected"),
    [
        (0.0, 0.0, 1.0),
        (0.3, 0.0, 1.0),
        (40.0, 0.0, 40.0),
        (2.0, 30.0, 32.0),
        (3600.0, 0.0, 600.0),
        (None, 0.0, 600.0),
        (None, 30.0, 600.0),
    ],
)
def test_what_has_been_away_is_away_for_as_long_again(
    away_s: float | None, load_s: float, expected: float
) -> None:
    assert back_s(away_s, load_s) == expected


@pytest.mark.parametrize(
    ("broken_s", "load_s", "expected"),
    [(0.0, 0.0, 10.0), (9.0, 0.0, 10.0), (70.0, 0.0, 70.0), (5000.0, 0.0, 300.0), (5000.0, 400.0, 600.0)],
)
def test_what_could_not_be_loaded_is_tried_again_after_pauses_that_double(
    broken_s: float, load_s: float, expected: float
) -> None:
    assert mended_s(broken_s, load_s) == expected


@given(SECONDS, SECONDS, SECONDS, SECONDS)
def test_they_are_bounded_and_never_shorten(
    seconds: float, more: float, load_s: float, more_load_s: float
) -> None:
    for rule in (back_s, mended_s):
        assert 1 <= rule(seconds, load_s) <= rule(seconds + more, load_s + more_load_s) <= 600
