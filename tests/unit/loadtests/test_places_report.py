"""What is told of runs of `places.py`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from comers import Mode, Story, Try
from first_come import Arrival
from places_report import Figures, Run, figures, holds, row, table_head, write_report


def story(at: float, *codes: str, wait: float | None = None, status: str = "succeeded") -> Story:
    """A call whose tries, a second apart, came to that."""
    tries = [Try(at + number, code) for number, code in enumerate(codes)]
    started_at = None if wait is None else at + wait
    job_id = "a" if codes[-1] == "accepted" else ""
    return Story(Arrival(at, 1.0), tries, job_id, started_at, 0.5 if job_id else 0.0, status)


STORIES = [
    story(0.0, "accepted", wait=0.0),
    story(0.0, "accepted", wait=2.0),
    story(0.5, "no-capacity", "accepted", wait=4.0),
    story(0.6, "no-capacity", "backlog-full", "accepted", status="expired"),
    story(0.7, "no-capacity", "no answer"),
    story(9.0, "no-capacity"),
]


def made(mode: Mode = "place") -> Figures:
    return figures(Run(mode, "exponential", 2, "7"), STORIES, 1, 2.0, 10.0)


def test_figures_are_counted() -> None:
    found = made()
    assert (found.calls, found.refused, found.next_share) == (6, 4, 0.25)
    assert (found.tries, found.most_tries) == (10 / 6, 3)
    assert (found.expired, found.given_up, found.lost) == (1, 2, 1)
    assert found.wait_s == 2.0
    # First-come: 0, 1, 1.5, 2.4, 3.3 and 0 s, of which the first three were started here, too.
    assert found.wait == pytest.approx(2.0 / (2.5 / 3))
    # Where they take 1.5 s: 0, 1.5 and 2.5 s.
    assert found.wait_measured == pytest.approx(2.0 / (4.0 / 3))
    assert found.p95 == pytest.approx(4.0 / 1.5)
    assert found.retries == 1.5  # three of them in the second from 1.0 on
    assert found.excess_s == pytest.approx(0.5)
    # From 5 s on: of the one that began at 4.5 s, as it took 1.5 s.
    assert found.busy == pytest.approx(1.0 / 5)


GOOD = replace(made(), calls=200, next_share=0.95, wait=1.25, retries=2.5, expired=2, given_up=0, lost=0)


def test_a_promise_that_is_kept_holds() -> None:
    assert holds([GOOD])
    assert holds([GOOD, made("neither"), made("constant")])


@pytest.mark.parametrize(
    "wrong",
    [
        {"next_share": 0.949},
        {"wait": 1.26},
        {"wait": float("nan")},
        {"retries": 2.6},
        {"expired": 3},
        {"given_up": 1},
        {"lost": 1},
    ],
)
def test_each_part_of_it_is_looked_at(wrong: dict[str, float]) -> None:
    assert not holds([GOOD, replace(GOOD, **wrong)])


def test_the_page_has_a_row_for_each_run_and_plots_that_are_there(tmp_path: Path) -> None:
    found = [made(), made("neither"), made("constant")]
    write_report(tmp_path, found, 7, 60)
    page = (tmp_path / "places.md").read_text()
    assert table_head() in page
    assert all(row(one) in page for one in found)
    plots = sorted(tmp_path.glob("*.svg"))
    assert len(plots) == 4
    for plot in plots:
        assert f"]({plot.name})" in page
        assert ElementTree.parse(plot).getroot().tag == "{http://www.w3.org/2000/svg}svg"
