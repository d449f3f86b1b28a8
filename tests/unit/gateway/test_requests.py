from __future__ import annotations

from typing import Any

import pytest
from litestar import HttpMethod, Litestar, Response, get, post, route
from litestar.params import FromPath
from litestar.testing import TestClient

from headrace.gateway.requests import Requests


@get("/read")
async def read() -> str:
    return "text"


@post("/write")
async def write() -> str:
    return ""


@route("/both", http_method=[HttpMethod.GET, HttpMethod.HEAD])
async def both() -> Response[str]:
    return Response("text")


@post("/fn/{name:str}")
async def not_called(name: FromPath[str]) -> None:
    raise AssertionError(name)


async def call(scope: Any, receive: Any, send: Any) -> None:
    """Answers calls with the name of the function."""
    name = scope["path_params"]["name"].encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": name})


def client(**how: Any) -> TestClient[Any]:
    application = Litestar([read, write, both, not_called], openapi_config=None)
    wrapped: Any = Requests(application, call)
    return TestClient(wrapped, **how)


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/read", ["GET", "HEAD", "OPTIONS"]),
        ("/both", ["GET", "HEAD", "OPTIONS"]),
        ("/write", ["OPTIONS", "POST"]),
        ("/fn/echo", ["OPTIONS", "POST"]),
    ],
)
def test_options_tells_of_head_wherever_get_is(path: str, methods: list[str]) -> None:
    with client() as made:
        answer = made.options(path)
        assert answer.status_code == 204
        assert sorted(answer.headers["allow"].split(", ")) == methods
        assert made.head(path).is_success == ("HEAD" in methods)


@pytest.mark.parametrize("path", ["/fn/echo", "/fn/echo/", "//fn//echo", "/f%6e/ech%6F"])
def test_a_call_goes_past_litestar_however_its_path_is_written(path: str) -> None:
    with client() as made:
        answer = made.post(f"http://test{path}")
        assert (answer.status_code, answer.text) == (200, "echo")
        assert "x-request-id" not in answer.headers  # that is the call's own to give


def test_a_call_is_known_behind_the_part_of_the_path_that_a_proxy_takes() -> None:
    with client(root_path="/inner") as made:
        assert made.post("/inner/fn/echo").text == "echo"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/fn/echo", 405),
        ("POST", "/fn", 404),
        ("POST", "/fn/echo/more", 404),
        ("POST", "/FN/echo", 404),
    ],
)
def test_what_is_no_call_is_litestars(method: str, path: str, status: int) -> None:
    with client() as made:
        answer = made.request(method, path)
        assert answer.status_code == status
        assert answer.headers["x-request-id"]
