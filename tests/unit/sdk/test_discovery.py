"""Functions are found by module name, and whatever keeps a module from loading is said plainly."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from headrace.errors import DeclarationError
from headrace.sdk import discovery
from headrace.sdk.discovery import discover

GOOD = """
from headrace import function

@function()
def {name}(input: int) -> int:
    return input
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Path]]:
    """Writes a module that can be imported during the test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, source: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        return path

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def refused(*names: str) -> str:
    with pytest.raises(DeclarationError) as caught:
        discover(names)
    return str(caught.value)


def test_modules_and_packages_are_searched(write):
    write("one.py", GOOD.format(name="first"))
    write("many/__init__.py", GOOD.format(name="second"))
    write("many/deep/__init__.py", "")
    write("many/deep/module.py", GOOD.format(name="third"))
    write("many/_private.py", "raise RuntimeError('private modules are left alone')")
    write("many/_hidden/module.py", "raise RuntimeError('and so are private packages')")
    found = discover(["one", "many"])
    assert sorted(found) == ["first", "second", "third"]
    assert all(function.name == name for name, function in found.items())


def test_a_function_that_is_imported_elsewhere_is_the_same_one(write):
    write("one.py", GOOD.format(name="first"))
    write("two.py", "from one import first\nalias = first")
    assert list(discover(["one", "two", "one"])) == ["first"]


def test_a_dotted_name_takes_that_module_only(write):
    write("many/__init__.py", GOOD.format(name="second"))
    write("many/module.py", GOOD.format(name="third"))
    assert list(discover(["many.module"])) == ["third"]


def test_a_name_that_is_taken_twice_names_both_places(write):
    one = write("one.py", GOOD.format(name="same"))
    two = write("two.py", "\n" + GOOD.format(name="same"))
    message = refused("one", "two")
    assert "two functions are named 'same'" in message
    assert f"{one}:4" in message
    assert f"{two}:5" in message


def test_a_second_function_of_a_name_in_one_module_is_found_too(write):
    write("one.py", GOOD.format(name="same") + "first = same\n" + GOOD.format(name="same"))
    assert "two functions are named 'same'" in refused("one")


@pytest.mark.parametrize("name", ["nothing_here", "nothing_here.at_all", "json.nothing_here"])
def test_a_module_that_is_not_there(name):
    assert refused(name) == f"there is no module {name!r}: it is neither in the current folder nor installed"


@pytest.mark.parametrize("name", ["", "functions/embed.py", "a-b", ".relative", "a..b"])
def test_what_is_no_module_name(name):
    assert refused(name).startswith(f"{name!r} is not a module name")


def test_a_module_without_functions(write):
    write("empty.py", "x = 1")
    assert (
        refused("empty") == "module 'empty' declares no function: nothing in it is decorated with @function"
    )


def test_a_module_that_lacks_a_library(write):
    path = write("one.py", "x = 1\nimport nothing_here")
    assert refused("one") == (
        f"{path}:2: module 'one' can't be imported: ModuleNotFoundError: No module named 'nothing_here'"
    )


def test_a_module_that_fails_names_its_deepest_line(write):
    write("one.py", "from two import fail\n\nfail()")
    two = write("two.py", "import json\n\ndef fail():\n    json.loads('{')\n")
    with pytest.raises(DeclarationError) as caught:
        discover(["one"])
    assert str(caught.value).startswith(f"{two}:4: module 'one' can't be imported: JSONDecodeError: ")
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_wrong_budget_names_its_line(write):
    path = write("one.py", "from headrace import Budget\n\nB = Budget(soft=40, hard=30)")
    assert refused("one") == (
        f"{path}:3: module 'one' can't be imported: ValueError: soft (40 s) must not be over hard (30 s)"
    )


def test_a_wrong_declaration_speaks_for_itself(write):
    path = write("one.py", GOOD.format(name="first").replace("function()", "function(attempts=0)"))
    assert refused("one") == (
        f"{path}:4: function 'first', attempts: must be a whole number from 1 to 20, not 0"
    )


def test_a_file_type_names_its_line(write):
    path = write("one.py", "from headrace import File\n\nF = File()")
    assert refused("one").startswith(f"{path}:3: ")


def test_a_syntax_error_names_its_line(write):
    path = write("one.py", "x = 1\ny = (\n")
    assert re.match(rf"{re.escape(str(path))}:2: module 'one' can't be imported: SyntaxError", refused("one"))


def test_a_script_that_exits(write):
    path = write("one.py", "import sys\nsys.exit(3)")
    assert refused("one") == f"{path}:2: module 'one' can't be imported: SystemExit: 3"


def test_without_names_entry_points_are_served(write, monkeypatch):
    write("one.py", GOOD.format(name="first"))
    points = [EntryPoint("mine", "one", discovery.ENTRY_POINTS)]
    monkeypatch.setattr(
        discovery, "entry_points", lambda *, group: points if group == "headrace.functions" else []
    )
    assert list(discover([])) == ["first"]


def test_without_names_and_entry_points_there_is_nothing_to_serve(monkeypatch):
    monkeypatch.setattr(discovery, "entry_points", lambda *, group: [])
    assert "no function to serve: name modules in HEADRACE_FUNCTIONS" in refused()
