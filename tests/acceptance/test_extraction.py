"""The built-in `extract` through a whole site, and a site on which its library isn't installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.postgres import Clones
from harness.problem import problem
from harness.site import Site, site

from headrace.client import Client

NAMES = "Ada Lovelace met Charles Babbage in London on 5 June 1833."


@pytest.fixture(scope="module")
def extracting(clones: Clones) -> Iterator[Site]:
    if importlib.util.find_spec("spacy") is None:
        pytest.skip("the extra `extract` isn't installed")
    with clones.migrated() as url, site(url, functions="functions.extract") as running:
        yield running


def test_concurrent_calls_each_get_their_own_entities(extracting: Site) -> None:
    towns = ["London", "Paris", "Berlin", "Madrid", "Rome", "Vienna", "Chicago", "Toronto"]

    def ask(town: str) -> list[list[str]]:
        body = {"texts": [f"Ada Lovelace lives in {town}.", "Nothing."], "labels": ["GPE"]}
        with Client(extracting.url, extracting.key) as client:  # which waits while the model loads
            answer = client.call("extract", body)
        return [[one["text"] for one in entities] for entities in answer["entities"]]

    with ThreadPoolExecutor(len(towns)) as pool:
        assert list(pool.map(ask, towns)) == [[[town], []] for town in towns]


def test_an_unknown_label_is_422_and_lists_the_known_ones(extracting: Site) -> None:
    document = problem(
        extracting.call("extract", {"texts": [NAMES], "labels": ["NAME"]}), 422, "invalid-input"
    )
    assert "/labels/0" in str(document)
    assert "WORK_OF_ART" in str(document)


def test_a_site_without_its_library_serves_the_rest(clones: Clones) -> None:
    with clones.migrated() as url, site(url, functions="partly_installed_functions") as running:
        assert running.call("there", 7).json() == 7
        problem(running.call("extract", {"texts": [NAMES]}), 404, "unknown-function")
        log = running["runner-0"].output()
    [line] = [line for line in log.splitlines() if "not offered" in line]
    assert "pip install 'headrace[extract]'" in line
