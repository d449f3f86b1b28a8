from __future__ import annotations

from typing import Any

import pytest
from litestar import HttpMethod, Litestar, Response, get, post, route
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


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/read", ["GET", "HEAD", "OPTIONS"]),
        ("/both", ["GET", "HEAD", "OPTIONS"]),
        ("/write", ["OPTIONS", "POST"]),
    ],
)
def test_options_tells_of_head_wherever_get_is(path: str, methods: list[str]) -> None:
    app: Any = Requests(Litestar([read, write, both], openapi_config=None))
    with TestClient(app) as client:
        answer = client.options(path)
        assert answer.status_code == 204
        assert sorted(answer.headers["allow"].split(", ")) == methods
        assert client.head(path).is_success == ("HEAD" in methods)
