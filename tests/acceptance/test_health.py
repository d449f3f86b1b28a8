"""A site from its gateway alone to one that serves, and the pages that say how it stands."""

from __future__ import annotations

import re

import pytest
from harness.postgres import Clones
from harness.problem import problem
from harness.site import Site, answered, site


def test_a_gateway_without_runners_lives_but_is_not_ready(clones: Clones) -> None:
    with clones.migrated() as url, site(url, runners=0) as alone:
        assert alone.client.get("/healthz").json() == {"status": "ok"}
        response = alone.client.get("/readyz")
        assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
        assert response.json() == {
            "ready": False,
            "missing": ["no function is registered: start a runner"],
            "functions": {},
            "runners": [],
            "intake": {"paused": False, "functions": []},
        }
        assert alone.get("/fn").json() == {"items": [], "next": None}
        problem(alone.call("echo", {"text": "a"}), 404, "unknown-function")

        alone.start_runner()
        response = answered(lambda: alone.client.get("/readyz"), 200)
        assert (response.json()["ready"], response.json()["missing"]) == (True, [])
        assert "Retry-After" not in response.headers


def test_readiness_tells_the_state_of_each_function(served: Site) -> None:
    assert served.call("echo", {"text": "a"}).status_code == 200  # else nothing is known of its speed
    states = served.client.get("/readyz").json()["functions"]

    expected = {"runners": 1, "slots": 1, "load": 0, "degraded": [], "predicted_wait_s": 0.0}
    assert states["echo"] == expected
    assert states["wait_together"]["slots"] == 16


def test_a_function_whose_model_cannot_be_loaded_is_degraded_and_the_others_are_served(
    clones: Clones,
) -> None:
    source = """\
from headrace import Device, FOREVER, function, model, uses
from pydantic import BaseModel

class In(BaseModel):
    n: int

class Net: ...

@model(keep_alive=FOREVER)
def net(device: Device) -> Net:
    raise OSError("secret-weights are not here")

@function()
def infer(input: In, *, net: Net = uses(net)) -> int:
    return 1

@function()
def sound(input: In) -> int:
    return input.n
"""
    with clones.migrated() as url, site(url, runners=0) as broken:
        broken.write_module("broken", source)
        broken.start_runner(HEADRACE_FUNCTIONS="broken")
        answered(lambda: broken.client.get("/readyz"), 200)

        document = problem(broken.call("infer", {"n": 1}), 503, "function-degraded")
        assert "secret" not in str(document)
        assert broken.call("sound", {"n": 1}).json() == 1
        states = broken.client.get("/readyz").json()["functions"]
        assert (states["infer"]["runners"], states["sound"]["runners"]) == (0, 1)
        assert states["infer"]["degraded"] != []


def test_one_function_shows_its_contract(served: Site) -> None:
    shown = served.get("/fn/echo").json()

    assert re.fullmatch("[0-9a-f]{32}", shown["interface"])
    assert (shown["limits"]["input"], shown["budget"]["sync"]) == (16384, 10)
    assert shown["input_schema"]["required"] == ["text"]
    assert shown["state"]["runners"] == 1


@pytest.mark.parametrize("path", ["/fn", "/fn/echo"])
def test_functions_are_shown_to_key_holders_only(served: Site, path: str) -> None:
    problem(served.client.get(path), 401, "missing-key")


@pytest.mark.parametrize(
    "path", ["/healthz", "/readyz", "/metrics", "/docs", "/openapi.json", "/problems/busy"]
)
def test_what_needs_no_key(served: Site, path: str) -> None:
    response = served.client.get(path)

    assert response.status_code == 200
    assert response.headers["X-Request-Id"]


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("no-such-function", "unknown-function"),
        ("echo", "invalid-input"),
        ("fails", "function-failed"),
        ("obedient", "soft-limit-exceeded"),
    ],
)
def test_a_problems_type_leads_to_a_page_about_it(served: Site, function: str, code: str) -> None:
    response = served.call(function, {})
    page = served.client.get(response.json()["type"])

    assert (page.status_code, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert response.json()["code"] == code
    assert code in page.text
    assert str(response.status_code) in page.text


def test_a_problem_that_does_not_exist(served: Site) -> None:
    problem(served.client.get("/problems/no-such-problem"), 404, "not-found")
