"""Plots as SVG files of their own, light or dark as the reader's browser is, in a few kilobytes of text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

Series = Mapping[str, Sequence[tuple[float, float]]]

_LEFT: Final = 58
_TOP: Final = 34
_WIDTH: Final = 560  # of the area that is plotted in
_HEIGHT: Final = 250
_KEY: Final = 165  # for the names of the series, on the right
_TICKS: Final = 5
_COLOURS: Final = ("#0b62b4", "#c2500a", "#12805c", "#9b3f97", "#75610e", "#555e68")
_IN_THE_DARK: Final = ("#62b0f5", "#f59a5c", "#4fc79d", "#dd8fd8", "#d4ba52", "#a9b3bd")
_DASHES: Final = ("", "7 3", "2 3", "9 3 2 3", "4 4", "1 4")  # for who doesn't see colours

_STYLE: Final = """\
text { font: 12px system-ui, sans-serif; fill: #24292f; }
.title { font-weight: 600; font-size: 14px; }
.paper { fill: #ffffff; } .grid { stroke: #d0d7de; } .level { stroke: #24292f; stroke-dasharray: 3 3; }
polyline { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
"""
_DARK_STYLE: Final = """\
text { fill: #d6dde5; } .paper { fill: #0d1117; } .grid { stroke: #343b44; } .level { stroke: #d6dde5; }
"""


def lines(
    path: Path,
    title: str,
    x_label: str,
    y_label: str,
    series: Series,
    *,
    levels: Mapping[str, float] | None = None,
) -> None:
    """Write a plot of lines.

    Args:
        path: the file.
        title: what it shows.
        x_label: what the horizontal axis is, with its unit.
        y_label: the vertical one.
        series: the points of each line, by its name, in the order of x. At most six.
        levels: values of y that are marked by a horizontal line, by what they mean.
    """
    points = [point for line in series.values() for point in line]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    area = _Area(min(xs, default=0), max(xs, default=1), _top(ys, levels))
    parts = _frame(area, title, x_label, y_label, levels)
    for x in _ticks(area.x_from, area.x_to):
        parts.append(_text(area.x(x), _TOP + _HEIGHT + 17, f"{x:g}", "middle"))
    for number, (name, line) in enumerate(series.items()):
        drawn = " ".join(f"{area.x(x):.1f},{area.y(y):.1f}" for x, y in line)
        look = f'class="s{number}" stroke-dasharray="{_DASHES[number]}"'
        parts.append(f'<polyline {look} points="{drawn}"/>')
        at = _TOP + 8 + 19 * number
        right = _LEFT + _WIDTH
        parts.append(f'<polyline {look} points="{right + 12},{at} {right + 38},{at}"/>')
        parts.append(_text(right + 44, at + 4, name))
    _write(path, title, parts)


def bars(
    path: Path,
    title: str,
    y_label: str,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    levels: Mapping[str, float] | None = None,
) -> None:
    """Write a plot of bars in groups.

    Args:
        path: the file.
        title: what it shows.
        y_label: what the vertical axis is, with its unit.
        groups: what stands below each group of bars.
        series: a value for each group, by the name of the series; NaN: no bar. At most six.
        levels: as for lines.
    """
    values = [value for row in series.values() for value in row if not math.isnan(value)]
    area = _Area(0, len(groups), _top(values, levels))
    parts = _frame(area, title, "", y_label, levels)
    width = _WIDTH / len(groups) * 0.8 / len(series)
    for place, group in enumerate(groups):
        parts.append(_text(area.x(place + 0.5), _TOP + _HEIGHT + 17, group, "middle"))
    for number, (name, row) in enumerate(series.items()):
        for place, value in enumerate(row):
            if not math.isnan(value):
                left, top = area.x(place + 0.1) + number * width, area.y(value)
                parts.append(_bar(number, left, top, width - 1, _TOP + _HEIGHT - top))
        at = _TOP + 19 * number
        parts.append(_bar(number, _LEFT + _WIDTH + 12, at, 14, 12))
        parts.append(_text(_LEFT + _WIDTH + 32, at + 10, name))
    _write(path, title, parts)


class _Area(NamedTuple):
    """What is plotted in, in the units of the data; y begins at 0."""

    x_from: float
    x_to: float
    y_to: float

    def x(self, value: float) -> float:
        return _LEFT + (value - self.x_from) / ((self.x_to - self.x_from) or 1) * _WIDTH

    def y(self, value: float) -> float:
        return _TOP + (1 - value / self.y_to) * _HEIGHT


def _top(values: Sequence[float], levels: Mapping[str, float] | None) -> float:
    """Where the vertical axis ends: a little above all that is drawn."""
    return max([*values, *(levels or {}).values()], default=0) * 1.06 or 1.0


def _ticks(first: float, last: float) -> list[float]:
    """Round numbers between both, about five."""
    span = (last - first) or 1
    size = 10 ** math.floor(math.log10(span / _TICKS))
    step = next(size * by for by in (1, 2, 5, 10) if span / (size * by) <= _TICKS + 1)
    begin = math.ceil(first / step)
    return [round(step * n, 9) for n in range(begin, math.floor(last / step + 1e-9) + 1)]


def _frame(
    area: _Area, title: str, x_label: str, y_label: str, levels: Mapping[str, float] | None
) -> list[str]:
    right, bottom = _LEFT + _WIDTH, _TOP + _HEIGHT
    parts = [f'<text x="{_LEFT}" y="18" class="title">{escape(title)}</text>']
    for y in _ticks(0, area.y_to):
        parts.append(f'<path class="grid" d="M{_LEFT} {area.y(y):.1f}H{right}"/>')
        parts.append(_text(_LEFT - 6, area.y(y) + 4, f"{y:g}", "end"))
    for name, y in (levels or {}).items():
        parts.append(f'<path class="level" d="M{_LEFT} {area.y(y):.1f}H{right}"/>')
        parts.append(_text(_LEFT + 6, area.y(y) - 5, name))
    parts.append(_text(_LEFT + _WIDTH / 2, bottom + 36, x_label, "middle"))
    turned = f'transform="translate(14 {_TOP + _HEIGHT / 2:.0f}) rotate(-90)" text-anchor="middle"'
    return [*parts, f"<text {turned}>{escape(y_label)}</text>"]


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _bar(number: int, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="f{number}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _colours(colours: Sequence[str]) -> str:
    rules = (f".s{n} {{ stroke: {one}; }} .f{n} {{ fill: {one}; }}\n" for n, one in enumerate(colours))
    return "".join(rules)


def _write(path: Path, title: str, parts: Sequence[str]) -> None:
    width, height = _LEFT + _WIDTH + _KEY, _TOP + _HEIGHT + 46
    dark = f"@media (prefers-color-scheme: dark) {{\n{_DARK_STYLE}{_colours(_IN_THE_DARK)}}}\n"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">\n'
        f"<style>\n{_STYLE}{_colours(_COLOURS)}{dark}</style>\n"
        f'<rect class="paper" width="{width}" height="{height}"/>\n'
    )
    path.write_text(head + "\n".join(parts) + "\n</svg>\n")
