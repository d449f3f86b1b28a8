"""How good the built-in functions are, beside simple baselines: writes docs/quality.md.

    python loadtests/quality [embed] [summarize] [extract] [generate]

Each function's part is a module of its own beside this one, whose `measure` returns lines of Markdown.
Without names all are measured that are there; with some, the page keeps what it has of the others. The texts
and their marks are in tests/quality: our own, and written before anything was measured,
as a rule. Half are held out. Those in files named *_fresh.json were written and committed after the functions
were finished, and are measured once: a function that is changed by what they showed needs others.
"""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

_PARTS: Final = ("embed", "summarize", "extract", "generate")
_PAGE: Final = Path(__file__).parents[2] / "docs" / "quality.md"
_HEAD: Final = """\
# How good the built-in functions are

Written by `make bench-quality`, on texts and marks in `tests/quality`: our own, and written before anything
was measured, but for the short texts of `embed`, which its way of rounding was chosen with. *Held out*: the
half of them that nobody looked at while choosing how a function works. *All*: both halves. *Fresh*: more
texts and marks, not in *all*: written and committed after the functions were finished, measured once.
"""


def main() -> None:
    """Measure, and write the page."""
    here = [part for part in _PARTS if (Path(__file__).parent / f"{part}.py").is_file()]
    arguments = argparse.ArgumentParser(description="how good the built-in functions are")
    arguments.add_argument("parts", nargs="*", metavar="FUNCTION", help=f"of {', '.join(here)}; default: all")
    wanted: list[str] = arguments.parse_args().parts or here
    if unknown := set(wanted) - set(here):
        arguments.error(f"nothing measures {', '.join(sorted(unknown))}")
    sections = _sections(_PAGE.read_text() if _PAGE.is_file() else "")
    for part in wanted:
        lines = _measure(part)
        print(f"## {part}", "", *lines, "", sep="\n", flush=True)
        sections[part] = "\n".join(lines).strip()
        _PAGE.write_text(_page(sections))


def _measure(part: str) -> list[str]:
    """What the part's module says; it is found beside this one, as the folder is what is executed."""
    return cast(Callable[[], list[str]], importlib.import_module(part).measure)()


def _sections(page: str) -> dict[str, str]:
    """What a page says of each function."""
    found = re.split(r"^## (\w+)\n", page, flags=re.MULTILINE)[1:]
    return {name: text.strip() for name, text in zip(found[::2], found[1::2], strict=True)}


def _page(sections: dict[str, str]) -> str:
    parts = [f"## {part}\n\n{sections[part]}\n" for part in _PARTS if part in sections]
    return "\n".join([_HEAD, *parts])


if __name__ == "__main__":
    main()
