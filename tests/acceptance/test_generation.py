"""The built-in `generate` through a whole site, on a tiny random model."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator

import pytest
from harness import tiny_lm
from harness.event_stream import Event, Reader
from harness.postgres import Clones
from harness.site import Site, eventually, site

pytest.importorskip("transformers")

# On a busy machine threads that compute together wait for each other, and each token takes seconds.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def generating(clones: Clones, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    # So many layers that an answer of 400 tokens takes a second at least.
    folder = tiny_lm.build(tmp_path_factory.mktemp("lm"), layers=12)
    settings = {"HEADRACE_GENERATE_MODEL": str(folder), "HEADRACE_DEVICE": "cpu", **ONE_THREAD}
    with clones.migrated() as url, site(url, functions="functions.generate", settings=settings) as running:
        yield running


@contextlib.contextmanager
def answering(site: Site, prompt: str, max_tokens: int) -> Iterator[Reader]:
    wanted = site.headers(Accept="text/event-stream", Content_Type="application/json")
    content = json.dumps({"prompt": prompt, "max_tokens": max_tokens}).encode()
    with site.client.stream("POST", "/fn/generate", content=content, headers=wanted) as response:
        assert response.status_code == 200, response.read()
        yield Reader(response)


def test_answers_interleave_and_a_client_that_leaves_ends_its_own(generating: Site) -> None:
    with answering(generating, "Water", 400) as early, answering(generating, "Mill", 400) as left:
        assert early.next("item").data["text"]
        left.next("item")
        rest: list[tuple[float, Event]] = []
        reading = threading.Thread(target=lambda: rest.extend((time.monotonic(), event) for event in early))
        reading.start()
        with answering(generating, "Headrace", 2) as late:
            late.next("item")
            began = time.monotonic()
            assert list(late)[-1].kind == "result"
        left.response.close()
        left_at = time.monotonic()
        eventually(lambda: running(generating) <= 1, "the one whose client has left is out")
        assert reading.is_alive() or rest[-1][0] > left_at
        reading.join()

    assert rest[-1][0] > began
    assert rest[-1][1].kind == "result"
    assert rest[-1][1].data["usage"]["completion_tokens"] == rest[-2][1].data["usage"]["completion_tokens"]
    assert rest[-1][1].data["text"]


def running(site: Site) -> int:
    return site.get("/fn/generate").json()["state"]["load"]


def test_options_reach_the_model_and_what_is_wrong_with_them_the_caller(generating: Site) -> None:
    def asked(**fields: object) -> dict[str, object]:
        return generating.call("generate", {"prompt": "Water", "max_tokens": 40, **fields}).json()

    asked()  # from now on the prompt is read from what is kept of it, each time alike
    whole = str(asked()["text"])
    cut = asked(stop=[whole[8:12]])
    assert (cut["text"], cut["finish_reason"]) == (whole[: whole.index(whole[8:12])], "stop")
    assert asked(temperature=2, seed=4)["text"] != whole
    for wrong, path in (
        ({"temperature": 100}, "/temperature"),
        ({"stop": ["a"] * 50}, "/stop"),
        ({"stop": ["a", ""]}, "/stop/1"),
        ({"seed": -1}, "/seed"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "/response_format/json_schema/schema",
        ),
        ({"prompt": "a" * 600}, "/prompt"),
    ):
        refused = asked(**wrong)
        assert (refused["status"], refused["errors"][0]["path"]) == (422, path)  # type: ignore[index]
