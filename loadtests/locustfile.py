"""Load on a running site: synchronous calls, jobs, and reads of what is there.

    locust -f loadtests/locustfile.py                                 # then http://127.0.0.1:8089
    locust -f loadtests/locustfile.py --headless -u 2 -r 2 -t 30s     # 2 users for 30 seconds

In the folder of `headrace up` it finds the site and its key by itself; `HEADRACE_URL` and `HEADRACE_KEY` name
another one. `LOAD_CALL` and `LOAD_JOB` are the functions that are called and submitted,
`embed` unless they say otherwise; of any other function the first example in its manifest is sent. Every
answer that isn't as it should be is a failure, a refusal too, after which its user comes back when
`Retry-After` says. Only 503 `busy` of a synchronous call is none, but has a name of its own: it is what a
site answers whose slots are all taken, as those of a healthy one may be.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any, Final, cast

import gevent
from locust import FastHttpUser, between, events, task
from locust.exception import StopUser

from headrace.domain import FINAL
from headrace.settings import load_settings
from headrace.site import running_url
from headrace.site.address import base_url
from headrace.site.key_file import read_key

WORDS: Final = "water leads to a turbine and what is over passes by while each gate measures how much flows"
CALL: Final = os.environ.get("LOAD_CALL", "embed")
JOB: Final = os.environ.get("LOAD_JOB", "embed")


def site() -> tuple[str, str]:
    """The site's address, and a key of it."""
    url, key = os.environ.get("HEADRACE_URL"), os.environ.get("HEADRACE_KEY")
    if not url:
        settings = load_settings()
        url = running_url(settings.home) or base_url(settings.host, settings.port)
        key = key or read_key(settings.home)
    if not key:
        raise SystemExit(
            "loadtests/locustfile.py: run this in the folder of `headrace up`, or set HEADRACE_KEY"
        )
    return url.rstrip("/"), key


URL, KEY = site()


class SiteUser(FastHttpUser):
    """Asks with the key, and counts what isn't as expected as a failure."""

    abstract = True
    host = URL
    wait_time = between(0.0, 0.2)

    def ask(
        self, method: str, path: str, name: str, *expected: int, may_be_busy: bool = False, **request: Any
    ) -> Any:
        """The answer, or None for one that isn't expected: then the user has waited as it was told."""
        headers = {"Authorization": f"Bearer {KEY}", **request.pop("headers", {})}
        client: Any = self.client  # its types are only partly known
        with client.request(
            method, path, name=name, headers=headers, catch_response=True, **request
        ) as answer:
            if answer.status_code in expected:
                return answer
            if may_be_busy and code(answer) == "busy":
                answer.request_meta["name"] = f"{name} (busy)"
                answer.success()
            else:
                answer.failure(f"status {answer.status_code} {code(answer)}".rstrip())
            if answer.status_code:
                gevent.sleep(after(answer))
            return None

    def an_input(self, function: str) -> Any:
        """Something that the function accepts."""
        if function == "embed":
            return {"texts": [sentence() for _ in range(random.randint(1, 4))]}
        if function not in EXAMPLES:
            answer = self.ask("GET", f"/fn/{function}", "GET /fn/{name}", 200)
            examples: list[Any] = answer.json()["examples"] if answer else []
            if not examples:
                raise StopUser(f"there is no function {function}, or it has no example")
            EXAMPLES[function] = examples[0]
        return EXAMPLES[function]


class Caller(SiteUser):
    """Calls, thinks for a moment, and calls again."""

    weight = 3

    @task
    def call(self) -> None:
        """One synchronous call."""
        request = {"json": self.an_input(CALL), "headers": {"Headrace-Async": "never"}}
        self.ask("POST", f"/fn/{CALL}", f"POST /fn/{CALL}", 200, may_be_busy=True, **request)


class Submitter(SiteUser):
    """Submits a job, asks for it as often as it is told to, and fetches the result."""

    weight = 2

    @task
    def job(self) -> None:
        """One job, to its result."""
        began = time.perf_counter()
        accepted = self.ask(
            "POST",
            f"/fn/{JOB}",
            f"POST /fn/{JOB}, respond-async",
            202,
            json=self.an_input(JOB),
            headers={"Prefer": "respond-async"},
        )
        if accepted is None:
            return
        path, answer = accepted.headers["Location"], accepted
        while (status := answer.json()["status"]) not in FINAL:
            gevent.sleep(after(answer))
            if (answer := self.ask("GET", path, "GET /jobs/{id}", 200)) is None:
                return
        cast(Any, events.request).fire(
            request_type="JOB",
            name=f"{JOB}, from its submission to the answer that it is final",
            response_time=(time.perf_counter() - began) * 1000,
            response_length=0,
            exception=None if status == "succeeded" else RuntimeError(f"the job is {status}"),
            context={},
        )
        if status == "succeeded":
            self.ask("GET", f"{path}/result", "GET /jobs/{id}/result", 200)


class Reader(SiteUser):
    """Looks at its jobs and at what can be called."""

    wait_time = between(0.2, 1.0)

    @task(3)
    def jobs(self) -> None:
        """The newest jobs."""
        self.ask("GET", "/jobs?limit=20", "GET /jobs", 200)

    @task
    def functions(self) -> None:
        """All functions."""
        self.ask("GET", "/fn", "GET /fn", 200)


EXAMPLES: dict[str, Any] = {}


def code(answer: Any) -> str:
    """The code of the problem that is the answer; empty when it is none."""
    try:
        problem: Any = answer.json()
    except (TypeError, ValueError):
        return ""
    return str(cast("dict[str, Any]", problem).get("code", "")) if isinstance(problem, dict) else ""


def after(answer: Any) -> float:
    """When to come back: no sooner than `Retry-After` says, and not with everybody else."""
    wanted: str = answer.headers.get("Retry-After") or "1"
    return float(wanted) * random.uniform(1.0, 1.25)


def sentence() -> str:
    """Between 5 and 40 words."""
    return " ".join(random.choices(WORDS.split(), k=random.randint(5, 40)))
