"""Functions appear, change and go while a gateway runs, and the gateway never runs their code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from harness import postgres
from harness.postgres import Clones
from harness.problem import problem
from harness.site import Site, answered, eventually, site

# It leaves the id of every process that imports it.
GREETER = '''\
import os
from pathlib import Path
from pydantic import BaseModel
from headrace import function

with Path("importers").open("a") as file:
    file.write(f"{os.getpid()}\\n")

class Name(BaseModel):
    name: str

@function()
def greet(input: Name) -> str:
    """GREETING"""
    return f"Hello, {input.name}"
'''


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url) as running:
        yield running


@pytest.fixture
def greeting(served: Site) -> Site:
    """The site with a second runner, whose function it hadn't before."""
    if "greeter" not in {process.name for process in served.processes}:
        served.write_module("greeter", GREETER)
        served.start_runner("greeter", HEADRACE_FUNCTIONS="greeter")
        answered(lambda: served.call("greet", {"name": "Ada"}), 200)
    return served


def registered_at(served: Site, name: str) -> datetime:
    ((instant,),) = postgres.query(
        served.database_url, "SELECT registered_at FROM function WHERE name = %s", name
    )
    return instant


def test_a_new_function_is_served_within_a_second_of_its_registration(served: Site) -> None:
    problem(served.call("greet", {"name": "Ada"}), 404, "unknown-function")
    served.write_module("greeter", GREETER)
    served.start_runner("greeter", HEADRACE_FUNCTIONS="greeter")

    response = answered(lambda: served.call("greet", {"name": "Ada"}), 200)
    served_at = datetime.now(UTC)
    assert response.json() == "Hello, Ada"
    assert (served_at - registered_at(served, "greet")).total_seconds() < 1
    assert "greet" in {item["name"] for item in served.get("/fn").json()["items"]}
    assert "/fn/greet" in served.get("/openapi.json").json()["paths"]
    assert served.call("echo", {"text": "a"}).status_code == 200


def test_the_gateway_neither_imports_user_code_nor_maps_torch(greeting: Site) -> None:
    importers = set(map(int, (greeting.folder / "importers").read_text().split()))
    gateway = greeting["gateway"].pid

    assert greeting["greeter"].pid in importers
    assert gateway not in importers
    mapped = Path(f"/proc/{gateway}/maps").read_text()
    assert "uvloop" in mapped  # what is looked for would be found
    assert "torch" not in mapped


def test_a_docstring_is_no_change_of_the_interface(greeting: Site) -> None:
    before = greeting.get("/fn/greet").json()
    greeting.write_module("greeter", GREETER.replace("GREETING", "Says hello."))
    greeting.start_runner("greeter-2", HEADRACE_FUNCTIONS="greeter")

    eventually(lambda: greeting.runners_of("greet") == 2, "both runners serve it")
    after = greeting.get("/fn/greet").json()
    assert (before["description"], after["description"]) == ("GREETING", "Says hello.")
    assert after["interface"] == before["interface"]
    assert greeting["greeter-2"].stop() == 0


def test_another_input_is_another_interface_and_old_runners_get_none_of_its_calls(greeting: Site) -> None:
    before = greeting.get("/fn/greet").json()
    greeting.write_module("greeter", GREETER.replace("name: str", "name: str\n    polite: bool"))
    newer = greeting.start_runner("greeter-3", HEADRACE_FUNCTIONS="greeter")

    polite = {"name": "Ada", "polite": True}
    answered(lambda: greeting.call("greet", polite), 200)
    assert greeting.get("/fn/greet").json()["interface"] != before["interface"]
    assert greeting.runners_of("greet") == 1
    assert {greeting.call("greet", polite).status_code for _ in range(10)} == {200}
    assert problem(greeting.call("greet", {"name": "Ada"}), 422, "invalid-input")["errors"] == [
        {"path": "/polite", "message": "this field is required"}
    ]
    assert newer.stop() == 0
    # The older runner is there still, and so is what it serves.
    answered(lambda: greeting.call("greet", {"name": "Ada"}), 200)
    assert greeting.get("/fn/greet").json()["interface"] == before["interface"]


def test_a_retired_function_is_gone(greeting: Site) -> None:
    retired = subprocess.run(
        [sys.executable, "-m", "headrace", "functions", "retire", "greet"],
        env=greeting.environment(),
        cwd=greeting.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert retired.returncode == 0, retired.stderr

    response = answered(lambda: greeting.call("greet", {"name": "Ada"}), 410, within=5)
    assert "greet was retired at 20" in problem(response, 410, "function-retired")["detail"]
    problem(greeting.get("/fn/greet"), 410, "function-retired")
    assert "greet" not in {item["name"] for item in greeting.get("/fn").json()["items"]}
    assert "/fn/greet" not in greeting.get("/openapi.json").json()["paths"]


# ---------------------------------------------------------------------- declarations that are wrong

HEAD = """\
from pydantic import BaseModel
from headrace import Budget, function

class In(BaseModel):
    n: int
"""


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import no_such_library\n", ["bad.py:1: ", "'bad'", "No module named 'no_such_library'"]),
        ("def broken(:\n", ["bad.py:1: ", "'bad'", "SyntaxError"]),
        ("raise SystemExit(0)\n", ["bad.py:1: ", "'bad'", "SystemExit"]),
        ("x = 1\n", ["'bad'", "declares no function"]),
        (
            HEAD + "@function()\ndef a(input: In) -> int: ...\n"
            "@function(name='a')\ndef b(input: In) -> int: ...\n",
            ["two functions are named 'a'", "bad.py:6", "bad.py:8"],
        ),
        (
            HEAD + "@function(budget=Budget(soft=40, hard=30))\ndef slow(input: In) -> int: ...\n",
            ["bad.py:6: ", "function 'slow'", "soft (40 s) must not be over hard (30 s)"],
        ),
        (
            HEAD + f"@function()\ndef {'n' * 60}(input: In) -> int: ...\n",
            ["bad.py:6: ", "n" * 60, "name", "1 to 40 characters"],
        ),
        (HEAD + "@function()\ndef untyped(input) -> int: ...\n", ["bad.py:6: ", "untyped", "input", "type"]),
        (HEAD + "@function()\ndef silent(input: In): ...\n", ["bad.py:6: ", "silent", "return"]),
    ],
    ids=[
        "a library that isn't there",
        "a syntax error",
        "an exit",
        "nothing declared",
        "a duplicate name",
        "soft over hard",
        "a name of 60 characters",
        "an untyped parameter",
        "an untyped output",
    ],
)
def test_a_wrong_declaration_ends_the_runner_with_one_clear_line(
    tmp_path: Path, source: str, says: list[str]
) -> None:
    (tmp_path / "bad.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "gpu_runner"],
        env={"HEADRACE_FUNCTIONS": "bad", "HEADRACE_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("headrace runner: ")
    for part in says:
        assert part in line


def test_a_module_that_is_not_there(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpu_runner"],
        env={"HEADRACE_FUNCTIONS": "nowhere.at_all"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("headrace runner: there is no module 'nowhere.at_all'")
    assert done.stderr.count("\n") == 1
