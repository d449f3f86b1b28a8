"""Plots show what they are given."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from plots import bars, lines

SVG = "{http://www.w3.org/2000/svg}"


def drawn(path: Path) -> ElementTree.Element:
    return ElementTree.parse(path).getroot()


def texts(root: ElementTree.Element) -> list[str]:
    return [one.text or "" for one in root.iter(f"{SVG}text")]


def test_lines_lie_in_proportion(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    lines(path, "A & B", "time, s", "calls", {"<one>": [(0, 0), (5, 50), (10, 100)]}, levels={"most": 80})
    root = drawn(path)
    first, _ = root.iter(f"{SVG}polyline")
    points = [tuple(map(float, point.split(","))) for point in first.attrib["points"].split()]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 - x0 == x2 - x1 > 0
    assert abs((y0 - y1) - (y1 - y2)) < 0.2
    assert y2 < y1 < y0
    assert {"A & B", "<one>", "most", "time, s", "calls", "0", "100", "10"} <= set(texts(root))


def test_bars_are_as_high_as_their_values_and_absent_where_there_is_none(tmp_path: Path) -> None:
    path = tmp_path / "b.svg"
    bars(path, "t", "share", ["x", "y"], {"a": [10, 20], "b": [40, float("nan")]})
    named = [one for one in drawn(path).iter(f"{SVG}rect") if one.get("class", "").startswith("f")]
    heights = [float(one.attrib["height"]) for one in named if one.attrib["height"] != "12.0"]
    assert len(heights) == 3
    assert abs(heights[1] / heights[0] - 2) < 0.01
    assert abs(heights[2] / heights[0] - 4) < 0.01


def test_nothing_is_a_plot_too(tmp_path: Path) -> None:
    path = tmp_path / "c.svg"
    lines(path, "t", "x", "y", {"none": []})
    assert "none" in texts(drawn(path))
