"""What the gateway takes from inside of uvicorn: an upgrade that changes it is told here, by name."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from headrace.gateway import cycle, http
from headrace.gateway.server import _Server

ROOT = Path(__file__).parents[3]


async def nothing(scope, receive, send) -> None:
    """An application."""


def made_by_uvicorn(base: type) -> object:
    """What the gateway's class extends, as uvicorn makes it."""

    async def make() -> object:
        config = uvicorn.Config(nothing, lifespan="off", log_config=None, ws="none")
        if base is RequestResponseCycle:
            return base(*[None] * (len(inspect.signature(base).parameters)))
        if base is uvicorn.Server:
            return base(config)
        config.load()
        protocol = base(config, ServerState(), {})
        protocol.on_message_begin()  # sets the last of its attributes
        return protocol

    return asyncio.run(make())


def class_of(module, name: str) -> ast.ClassDef:
    tree = ast.parse(inspect.getsource(module))
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def names_of_itself(tree: ast.ClassDef) -> tuple[set[str], set[str], set[str]]:
    """The attributes of `self` (and of `super()`) that a class reads, sets and declares."""
    read: set[str] = set()
    put: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        of = node.value
        is_super = isinstance(of, ast.Call) and isinstance(of.func, ast.Name) and of.func.id == "super"
        if (isinstance(of, ast.Name) and of.id == "self") or is_super:
            (put if isinstance(node.ctx, ast.Store) else read).add(node.attr)
    declared = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    declared |= {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
    return read, put, declared


@pytest.mark.parametrize(
    ("module", "ours", "base"),
    [(http, http.Connection, HttpToolsProtocol), (cycle, cycle.Cycle, RequestResponseCycle)],
)
def test_what_is_read_is_there(module, ours, base):
    read, put, declared = names_of_itself(class_of(module, ours.__name__))
    theirs = made_by_uvicorn(base)
    taken = read - declared - {name for name in put if name.startswith("_")}
    assert len(taken) > 8
    assert {name for name in taken if not hasattr(theirs, name)} == set()


def test_what_uvicorn_or_the_parser_calls_is_still_called_so():
    """A method that takes the place of none is never called, without a word."""
    public = {name for name in vars(http.Connection) if not name.startswith("_")}
    methods = {name for name in public if inspect.isfunction(vars(http.Connection)[name])}
    assert methods
    assert {name for name in methods if not hasattr(HttpToolsProtocol, name)} == set()
    assert {name for name in ("receive", "send") if not hasattr(RequestResponseCycle, name)} == set()
    assert list(inspect.signature(_Server.shutdown).parameters) == list(
        inspect.signature(uvicorn.Server.shutdown).parameters
    )


def test_a_cycle_is_made_of_the_same_things_in_the_same_order():
    assert list(inspect.signature(RequestResponseCycle).parameters) == [
        "scope",
        "transport",
        "flow",
        "logger",
        "access_logger",
        "access_log",
        "default_headers",
        "message_event",
        "expect_100_continue",
        "keep_alive",
        "on_response",
    ]


def test_what_is_used_of_others_is_what_it_was():
    assert STATUS_LINE[200] == b"HTTP/1.1 200 OK\r\n"
    assert HIGH_WATER_LIMIT == 65536
    assert list(inspect.signature(HttpToolsProtocol._start_asgi_task).parameters) == ["self", "cycle", "app"]
    state = ServerState()
    assert (state.total_requests, state.default_headers) == (0, [])


def test_no_version_is_allowed_beyond_the_one_that_is_tested():
    """Minors change what is used here: 0.45 brought `_start_asgi_task`, 0.50 `asgi_version`.

    All tests of the gateway's HTTP pass with 0.53 and the pinned version; before, those of HTTP/1.0 don't.
    """
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (said,) = [need for need in needs if need.startswith("uvicorn")]
    bounds = re.fullmatch(r"uvicorn>=0\.(\d+),<0\.(\d+)", said)
    assert bounds is not None, said
    minor = int(metadata.version("uvicorn").split(".")[1])
    assert int(bounds[1]) >= 53
    assert int(bounds[2]) == minor + 1
