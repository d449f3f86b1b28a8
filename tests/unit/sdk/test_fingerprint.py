"""Which changes of code make another revision of a function."""

from __future__ import annotations

import dis
import importlib
import logging
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.sdk import helpers

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
            for name in [one for one in sys.modules if one.partition(".")[0] in ("shop", "store")]:
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


LOADING = """
from headrace import function, uses
from shop.parts import load, price

@function()
def total(input: int, *, rate: float = uses(load)) -> int:
    return price(input)
"""
PARTS = """
from headrace import Device, model
from shop import _taxes

@model()
def load(device: Device) -> float:
    return {load}

def price(n):
    return n * {price}
"""


@pytest.mark.parametrize(
    "changed",
    [
        {"parts.py": PARTS.format(load=2.0, price=3)},
        {"parts.py": PARTS.format(load=1.0, price=4)},
        {"_taxes.py": "RATE = 3\n"},
    ],
    ids=["loader", "helper beside it", "what both import"],
)
def test_a_module_that_has_a_loader_is_a_helper_as_a_whole(
    revision: Revision, changed: dict[str, str]
) -> None:
    files = {"sale.py": LOADING, "parts.py": PARTS.format(load=1.0, price=3)}
    assert revision(**files) == revision(**files)
    assert revision(**{**files, **changed}) != revision(**files)


@pytest.mark.parametrize("changed", ["price", "rates"])
def test_a_loader_of_another_package_brings_its_module_and_what_that_imports(
    revision: Revision, changed: str
) -> None:
    parts = PARTS.replace("shop", "store").replace("_taxes", "_rates")
    files = {
        "sale.py": LOADING.replace("shop.parts", "store.parts"),
        "../store/__init__.py": "",
        "../store/parts.py": parts.format(load=1.0, price=3),
        "../store/_rates.py": "RATE = 2\n",
    }
    other = {
        "price": {"../store/parts.py": parts.format(load=1.0, price=4)},
        "rates": {"../store/_rates.py": "RATE = 3\n"},
    }
    assert revision(**files) == revision(**files) != revision(**{**files, **other[changed]})


CLASS = "class Kept:\n    X = {x}\n    __firstlineno__ = {line}\n    __static_attributes__ = {names}\n"


def test_where_a_class_stands_and_what_python_notes_of_it_makes_none(revision: Revision) -> None:
    """As Python 3.13 compiles any class. The line may be a number that the class has anyway."""
    found = {
        revision(**{"_taxes.py": CLASS.format(x=1, line=line, names=names) + "RATE = 2\n"})
        for line, names in ((1, ("a", "b")), (7, ("b", "a")), (7000, ()))
    }
    assert len(found) == 1
    assert revision(**{"_taxes.py": CLASS.format(x=2, line=1, names=("a", "b")) + "RATE = 2\n"}) not in found


def test_a_helper_that_is_nested_too_deeply_to_be_read_is_passed_over(revision: Revision) -> None:
    deep = f"def deepest():\n    return n{' + n' * 100_000}\n"
    with pytest.raises(RecursionError):
        compile(deep, "deep.py", "exec")
    assert revision(**{"lazily/deep.py": deep}) != revision()


def test_helpers_in_a_zip_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[str, bytes]] = []
    for number, rate in enumerate((2, 2, 3)):
        archive = tmp_path / f"{number}.zip"
        with zipfile.ZipFile(archive, "w") as written:
            for name, text in {**FILES, "_taxes.py": f"RATE = {rate}\n"}.items():
                written.writestr(f"packed/{name}", text.replace("shop", "packed"))
        with monkeypatch.context() as patch:
            patch.syspath_prepend(archive)
            importlib.import_module("packed")
            found.append(helpers.helper_modules("packed.sale"))
            del sys.modules["packed"]
    assert {f"packed.{name}" for name in ("_prices", "_taxes", "_rounding", "lazily.deep")} <= found[0].keys()
    assert found[0] == found[1] != found[2]


def test_a_package_without_end_is_read_in_part_and_told_of(
    revision: Revision, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, helpers.__name__)
    revision()
    assert not caplog.records
    monkeypatch.setattr(helpers, "_MOST_MODULES", 2)
    assert revision() == revision()
    assert "more than 2 others" in caplog.text


def test_code_that_imports_nothing_isnt_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    light = compile("x = [n + 1 for n in range(9)]", "light.py", "exec")
    heavy = compile("import one.two", "heavy.py", "exec")
    assert [one.module for one in helpers.imports_of(heavy)] == ["one.two"]
    monkeypatch.delattr(dis, "get_instructions")
    assert list(helpers.imports_of(light)) == []
    with pytest.raises(AttributeError):
        list(helpers.imports_of(heavy))
