"""Load on `POST /fn/embed`: one to four texts of 5 to 40 words a call.

Run it headless with a key in the environment, here 8 users for 30 seconds:

    export HEADRACE_KEY="$(cat .headrace/key)"
    locust -f loadtests/embed.py --headless --host http://127.0.0.1:8000 -u 8 -r 8 -t 30s

A refusal counts as a failed call, and its user comes back when `Retry-After` says.
"""

from __future__ import annotations

import os
import random
from typing import Any

import gevent
from locust import FastHttpUser, between, task

WORDS = "water leads to a turbine and what is over passes by while each gate measures how much flows"


class EmbedUser(FastHttpUser):
    """A client that asks for vectors, thinks for a moment, and asks again."""

    wait_time = between(0.0, 0.2)

    @task
    def embed(self) -> None:
        """One call; its answer must hold a vector for each text."""
        texts = [sentence() for _ in range(random.randint(1, 4))]
        client: Any = self.client  # its types are only partly known
        headers = {"Authorization": f"Bearer {KEY}"}
        with client.post("/fn/embed", json={"texts": texts}, headers=headers, catch_response=True) as answer:
            if answer.status_code != 200:
                answer.failure(f"status {answer.status_code}")
                gevent.sleep(float(answer.headers.get("Retry-After", 0) if answer.headers else 0))
            elif len(answer.json()["vectors"]) != len(texts):
                answer.failure("not a vector for each text")


def sentence() -> str:
    """Between 5 and 40 words."""
    return " ".join(random.choices(WORDS.split(), k=random.randint(5, 40)))


KEY = os.environ.get("HEADRACE_KEY", "")
if not KEY:
    raise SystemExit("loadtests/embed.py: set HEADRACE_KEY to an API key")
