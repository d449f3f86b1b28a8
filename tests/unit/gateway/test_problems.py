from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from litestar import get, post
from litestar.exceptions import HTTPException
from litestar.testing import create_test_client

from headrace.errors import DatabaseUnavailable, InvalidInput, InvalidOutput
from headrace.gateway.problem_kinds import KINDS
from headrace.gateway.problems import Problem, exception_handlers, to_problem

CODES = sorted(KINDS)


@pytest.mark.parametrize("code", CODES)
def test_every_kind_makes_a_complete_document(code: str) -> None:
    problem = Problem(code, "What went wrong.")
    document = msgspec.json.decode(problem.body("https://ai.example/x/", "r-1"))
    assert document == {
        "type": f"https://ai.example/x/problems/{code}",
        "title": KINDS[code].title,
        "status": KINDS[code].status,
        "detail": "What went wrong.",
        "code": code,
        "request_id": "r-1",
    }


@pytest.mark.parametrize("code", CODES)
def test_codes_are_stable_slugs_with_advice(code: str) -> None:
    kind = KINDS[code]
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", code)
    assert 400 <= kind.status <= 599
    assert kind.meaning.endswith(".")
    assert kind.remedy.endswith(".")


@pytest.mark.parametrize("code", [code for code in CODES if KINDS[code].status == 503])
def test_every_503_says_when_to_come_back(code: str) -> None:
    assert int(Problem(code).headers["Retry-After"]) >= 1
    assert Problem(code, headers={"retry-after": "7"}).headers["Retry-After"] == "7"


@pytest.mark.parametrize("code", ["missing-key", "invalid-key", "forbidden"])
def test_authentication_problems_carry_a_challenge(code: str) -> None:
    challenge = Problem(code).headers["WWW-Authenticate"]
    assert challenge.startswith("Bearer ")
    # RFC 6750: no error code where no credentials were sent.
    assert ("error=" in challenge) == (code != "missing-key")


def test_extras_join_the_document_and_never_replace_a_member() -> None:
    errors = [{"path": "/texts", "message": "too few"}]
    document = msgspec.json.decode(Problem("invalid-input", errors=errors, status=200, title="fine").body())
    assert document["errors"] == errors
    assert document["status"] == 422
    assert document["title"] == KINDS["invalid-input"].title
    assert document["type"] == "/problems/invalid-input"
    assert "request_id" not in document


def test_an_unknown_code_is_refused_where_it_is_raised() -> None:
    with pytest.raises(KeyError):
        Problem("no-such-code")


@given(st.text(st.characters(codec=None)))
def test_any_detail_can_be_sent(detail: str) -> None:
    assert msgspec.json.decode(Problem("function-failed", detail).body())["code"] == "function-failed"


def test_asgi_form_has_the_length_and_the_headers() -> None:
    status, headers, body = Problem("busy", headers={"Retry-After": "3"}).asgi("", "r-1")
    assert status == 503
    assert dict(headers) == {
        b"content-type": b"application/problem+json",
        b"content-length": str(len(body)).encode(),
        b"cache-control": b"no-store",
        b"retry-after": b"3",
        b"x-request-id": b"r-1",
    }


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInput("no such language", path="/to"), "invalid-input"),
        (InvalidOutput("secret"), "invalid-output"),
        (DatabaseUnavailable("secret"), "database-unavailable"),
        (HTTPException(status_code=404), "not-found"),
        (HTTPException(status_code=413), "payload-too-large"),
        (HTTPException(status_code=418, detail="odd"), "bad-request"),
        (HTTPException(status_code=500, detail="secret"), "internal-error"),
        (ZeroDivisionError("secret"), "internal-error"),
    ],
)
def test_exceptions_become_problems(error: Exception, code: str) -> None:
    problem = to_problem(error)
    assert problem.code == code
    assert b"secret" not in problem.body()


def test_an_invalid_input_points_at_the_field() -> None:
    problem = to_problem(InvalidInput("no such language", path="/to"))
    assert msgspec.json.decode(problem.body())["errors"] == [{"path": "/to", "message": "no such language"}]


@get("/boom")
async def boom() -> str:
    raise RuntimeError("a secret of the implementation")


@get("/problem")
async def problem() -> str:
    raise Problem("worker-lost", "It went away.", job_id="j")


@post("/only-post")
async def only_post() -> str:
    return ""


def test_a_litestar_app_answers_only_problems() -> None:
    handlers = exception_handlers("https://ai.example", lambda _: "r-9")
    with create_test_client(
        [boom, problem, only_post], exception_handlers=handlers, raise_server_exceptions=False
    ) as client:
        cases = [
            ("GET", "/nowhere", 404, "not-found"),
            ("GET", "/only-post", 405, "method-not-allowed"),
            ("GET", "/boom", 500, "internal-error"),
            ("GET", "/problem", 502, "worker-lost"),
        ]
        for method, path, status, code in cases:
            answer = client.request(method, path)
            assert answer.status_code == status
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["x-request-id"] == "r-9"
            assert answer.json()["code"] == code
            assert answer.json()["type"] == f"https://ai.example/problems/{code}"
            assert "secret" not in answer.text
            assert "Traceback" not in answer.text
        assert set(client.get("/only-post").headers["allow"].split(", ")) == {"OPTIONS", "POST"}
        assert client.get("/problem").json()["job_id"] == "j"
