"""Bad input: each kind has its own status, its own code, and a detail that helps."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
from harness.problem import problem
from harness.site import Site, answered

from headrace.database import Database
from headrace.keys import create_key, revoke_key

LIMIT = 16 * 2**10  # of `echo`


# ---------------------------------------------------------------------- who calls what


@pytest.mark.parametrize("headers", [{}, {"Prefer": "respond-async"}, {"Prefer": "respond-async, wait=3"}])
def test_unknown_function(served: Site, headers: dict[str, str]) -> None:
    response = served.call("no-such-function", {"text": "a"}, **headers)

    assert problem(response, 404, "unknown-function")["title"] == "No such function"
    assert "Preference-Applied" not in response.headers


def test_unknown_function_is_unknown_to_get_too(served: Site) -> None:
    problem(served.get("/fn/no-such-function"), 404, "unknown-function")
    problem(served.get("/no-such-path"), 404, "not-found")


@pytest.mark.parametrize("path", ["/fn/echo", "/fn/no-such-function"])
@pytest.mark.parametrize("header", [None, "", "Basic dXNlcjpwYXNz", "Bearer"])
def test_no_key(served: Site, path: str, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    response = served.client.post(path, json={"text": "a"}, headers=headers)

    problem(response, 401, "missing-key")
    assert response.headers["WWW-Authenticate"] == 'Bearer realm="headrace"'


@pytest.mark.parametrize("key", ["hr_" + "x" * 43, "x", "y" * 5000, "\xe9\xe8"])
def test_wrong_key(served: Site, key: str) -> None:
    headers = [(b"Authorization", f"Bearer {key}".encode("latin-1"))]
    for response in (
        served.client.post("/fn/echo", json={"text": "a"}, headers=headers),
        served.client.get("/fn", headers=headers),
    ):
        problem(response, 401, "invalid-key")
        assert response.headers["WWW-Authenticate"] == 'Bearer realm="headrace", error="invalid_token"'
        assert "xxx" not in response.text


def test_a_revoked_key_is_wrong_within_a_second(served: Site) -> None:
    async def make() -> str:
        async with await Database.open(served.database_url, application_name="test") as database:
            return await create_key(database, "other", "short-lived")

    async def revoke(key: str) -> bool:
        async with await Database.open(served.database_url, application_name="test") as database:
            return await revoke_key(database, key)

    key = asyncio.run(make())
    headers = {"Authorization": f"Bearer {key}"}
    assert served.call("echo", {"text": "a"}, **headers).status_code == 200
    assert asyncio.run(revoke(key))

    refused = answered(lambda: served.call("echo", {"text": "a"}, **headers), 401, within=5)
    problem(refused, 401, "invalid-key")
    assert served.call("echo", {"text": "a"}).status_code == 200


# ---------------------------------------------------------------------- not JSON


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "The body is empty"),
        (b"texts=a", "line 1, column"),
        (b'{"texts": ["a"]', "the body ends inside an object"),
        (b'{"texts": ["a"]} x', "something follows the value"),
        (b"{'texts': ['a']}", "line 1, column 2"),
        (b'\xef\xbb\xbf{"texts": ["a"]}', "byte order mark"),
        (b'{"texts": ["\xff"]}', "not valid UTF-8"),
        (b'{"texts": [NaN]}', "NaN is not a JSON number"),
        (b'{"texts": [Infinity]}', "Infinity is not a JSON number"),
        (b'{"texts": [-Infinity]}', "-Infinity is not a JSON number"),
        (b'{"texts": ["a", 1e999]}', "the number at /texts/1 is out of range"),
        (b'{"texts": ["\\ud800"]}', "lone surrogate"),
        (b'{"texts": ["\\udc00\\ud800"]}', "lone surrogate"),
        (b'{"texts": ["a"], "texts": ["b"]}', 'has the key "texts" twice'),
        (b'{"texts": [{"a": 1, "\\u0061": 2}]}', 'has the key "a" twice'),
        (b'{"texts": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "nested more than 100 levels deep"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "nested more than 100 levels deep"),
        (b"[" * 10_000, "nested more than 100 levels deep"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, bytes) else "",
)
def test_not_json(served: Site, body: bytes, says: str) -> None:
    document = problem(served.post("/fn/count", body), 400, "malformed-json")

    assert says in document["detail"]
    assert len(document["detail"]) < 200


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({}, "no `Content-Type`"),
        ({"Content-Type": "text/plain"}, "`text/plain` is not JSON"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, "is not JSON"),
        ({"Content-Type": "multipart/form-data; boundary=x"}, "is not JSON"),
        ({"Content-Type": "application/json; charset=latin-1"}, "send UTF-8"),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, "`gzip` is not supported"),
    ],
)
def test_wrong_content_type(served: Site, header: dict[str, str], says: str) -> None:
    response = served.client.post("/fn/echo", content=b'{"text": "a"}', headers=served.headers() | header)

    assert says in problem(response, 415, "unsupported-media-type")["detail"]
    assert response.headers["Accept"] == "application/json"


@pytest.mark.parametrize("value", ["application/json; charset=UTF-8", "application/vnd.api+json"])
def test_content_types_that_are_json(served: Site, value: str) -> None:
    assert served.post("/fn/echo", b'{"text": "a"}', **{"Content-Type": value}).status_code == 200


# ---------------------------------------------------------------------- JSON, but no input


@pytest.mark.parametrize(
    ("function", "input", "errors"),
    [
        ("echo", {}, {"/text": "this field is required"}),
        ("echo", {"text": "a", "extra": 1}, {"/extra": "no such field"}),
        ("echo", {"text": "a", "e/x~": 1}, {"/e~1x~0": "no such field"}),
        ("echo", {"extra": "q7w8"}, {"/text": "this field is required", "/extra": "no such field"}),
        ("echo", {"text": 3}, {"/text": '"string"'}),
        ("echo", {"text": None}, {"/text": '"string"'}),
        ("echo", {"text": "q7w8", "top_k": "3"}, {"/top_k": '"integer"'}),
        ("echo", {"text": "q7w8", "top_k": 1.5}, {"/top_k": '"integer"'}),
        ("echo", {"text": "q7w8", "top_k": True}, {"/top_k": '"integer"'}),
        ("echo", {"text": "a", "scores": [1, "q7w8"]}, {"/scores/1": '"number"'}),
        ("echo", {"text": "a", "flags": {"a/b": 1}}, {"/flags/a~1b": '"boolean"'}),
        ("echo", {"text": "q7w8" * 3000}, {"/text": "longer than 10000"}),
        ("echo", [], {"": '"object"'}),
        ("echo", None, {"": '"object"'}),
        ("nap", {"seconds": "3"}, {"/seconds": '"number"'}),
        ("nap", {"seconds": -1}, {"/seconds": "minimum of 0"}),
        ("count", {"texts": []}, {"/texts": "less than 1 item"}),
        ("count", {"texts": ["a"] * 10_000}, {"/texts": "more than 256 items"}),
        ("count", {"texts": ["a", ""]}, {"/texts/1": "shorter than 1 character"}),
        ("halve", {"number": 3}, {"/number": "the number is odd"}),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_invalid_input(served: Site, function: str, input: Any, errors: dict[str, str]) -> None:
    response = served.call(function, input)
    document = problem(response, 422, "invalid-input")

    found = {error["path"]: error["message"] for error in document["errors"]}
    assert found.keys() == errors.keys()
    for path, message in errors.items():
        assert message in found[path]
    assert document["errors"][0]["message"] in document["detail"]
    assert "q7w8" not in response.text  # it says what is expected, not what was sent


# ---------------------------------------------------------------------- too much


def body_of(size: int) -> bytes:
    return b'{"text": "a"'.ljust(size - 1) + b"}"


def test_a_body_at_the_limit_is_read(served: Site) -> None:
    body = body_of(LIMIT)

    assert served.post("/fn/echo", body).status_code == 200
    chunked = served.client.post(
        "/fn/echo",
        content=iter([body[:1000], body[1000:]]),
        headers=served.headers() | {"Content-Type": "application/json"},
    )
    assert "Content-Length" not in chunked.request.headers
    assert chunked.status_code == 200


@pytest.mark.parametrize("pieces", [1, 3], ids=["with Content-Length", "chunked"])
def test_a_body_one_byte_over_the_limit(served: Site, pieces: int) -> None:
    body = body_of(LIMIT + 1)
    content = body if pieces == 1 else iter([body[:9], body[9:-1], body[-1:]])
    response = served.client.post(
        "/fn/echo", content=content, headers=served.headers() | {"Content-Type": "application/json"}
    )

    document = problem(response, 413, "payload-too-large")
    assert (document["limit"], str(LIMIT) in document["detail"]) == (LIMIT, True)
    assert response.headers["Connection"] == "close"


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("Content-Length: 1000000000000", b""),
        ("Transfer-Encoding: chunked", b"%x\r\n%b\r\n" % (LIMIT + 1, b" " * (LIMIT + 1))),
    ],
    ids=["announced", "chunked without an end"],
)
def test_a_large_body_is_refused_before_it_is_read_whole(served: Site, header: str, body: bytes) -> None:
    head = (
        f"POST /fn/echo HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.key}\r\n"
        f"Content-Type: application/json\r\n{header}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(head.encode() + body)
        answer = b"".join(iter(lambda: connection.recv(2**16), b""))

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"payload-too-large"' in answer


# ---------------------------------------------------------------------- methods


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/fn/echo", {"GET", "HEAD", "POST"}),
        ("DELETE", "/fn/echo", {"GET", "HEAD", "POST"}),
        ("PATCH", "/fn/no-such-function", {"GET", "HEAD", "POST"}),
        ("POST", "/fn", {"GET", "HEAD"}),
        ("POST", "/healthz", {"GET", "HEAD"}),
        ("DELETE", "/readyz", {"GET", "HEAD"}),
        ("POST", "/problems/busy", {"GET", "HEAD"}),
        ("PUT", "/openapi.json", {"GET", "HEAD"}),
    ],
)
def test_wrong_method(served: Site, method: str, path: str, allowed: set[str]) -> None:
    response = served.client.request(method, path, headers=served.headers())

    document = problem(response, 405, "method-not-allowed")
    assert set(response.headers["Allow"].split(", ")) - {"OPTIONS"} == allowed
    assert all(method in document["detail"] for method in allowed)


@pytest.mark.parametrize(
    "path",
    [
        "/fn",
        "/fn/echo",
        "/fn/unknown",
        "/healthz",
        "/readyz",
        "/docs",
        "/openapi.json",
        "/problems/busy",
        "/x",
    ],
)
def test_head_is_get_without_the_content(served: Site, path: str) -> None:
    whole = served.get(path, X_Request_Id="same")
    head = served.client.head(path, headers=served.headers(X_Request_Id="same"))

    assert head.status_code == whole.status_code
    assert head.content == b""
    assert {**head.headers, "date": ""} == {**whole.headers, "date": ""}
