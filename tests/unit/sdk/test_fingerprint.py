"""Which changes of code make another revision of a function."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FUNCTION = """
from headrace import function
from shop._prices import price
from . import _rounding

NAMES = {{"a": 1}}

@function()
def total(input: int) -> int:
    from .lazily.deep import deepest
    return price(input) + _rounding.up(input) + deepest() {end}
"""
FILES = {
    "__init__.py": "",
    "sale.py": FUNCTION.format(end=""),
    "_prices.py": "from shop import _taxes\n\ndef price(n):\n    return n * _taxes.RATE\n",
    "_taxes.py": "RATE = 2\n",
    "_rounding.py": "def up(n):\n    return n + 1\n",
    "lazily/__init__.py": "raise RuntimeError('it is not run to be read')\n",
    "lazily/deep.py": "def deepest():\n    return 1\n",
    "unrelated.py": "X = 1\n",
}

Revision = Callable[..., str]


@pytest.fixture
def revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Revision:
    """The revision of `shop.sale.total` with these files instead of the usual ones."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def revision(**changed: str) -> str:
        for name, text in {**FILES, **changed}.items():
            path = tmp_path / "shop" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()
        try:
            return importlib.import_module("shop.sale").total.manifest.revision
        finally:
            for name in [one for one in sys.modules if one.partition(".")[0] == "shop"]:
                del sys.modules[name]

    return revision


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("sale.py", FUNCTION.format(end="+ 1")),
        ("_prices.py", "def price(n):\n    return n * 3\n"),
        ("_taxes.py", "RATE = 3\n"),
        ("_rounding.py", "def up(n):\n    return n + 2\n"),
        ("lazily/deep.py", "def deepest():\n    return 2\n"),
    ],
)
def test_a_helper_that_changes_makes_another_revision(revision: Revision, file: str, text: str) -> None:
    before = revision()
    assert revision() == before
    assert revision(**{file: text}) != before


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("unrelated.py", "X = 2\n"),
        ("_taxes.py", "# said otherwise\n\nRATE = 2\n"),
        ("__init__.py", "Y = 1\n"),
    ],
)
def test_what_it_doesnt_use_makes_none(revision: Revision, file: str, text: str) -> None:
    assert revision(**{file: text}) == revision()


def test_a_helper_that_cant_be_read_is_told_of_by_who_imports_it(revision: Revision) -> None:
    assert revision(**{"lazily/deep.py": "def (\n"}) != revision()


def test_modules_that_import_each_other(revision: Revision) -> None:
    taxes = "from shop import _prices\nRATE = {}\n"
    assert revision(**{"_taxes.py": taxes.format(2)}) != revision(**{"_taxes.py": taxes.format(3)})
