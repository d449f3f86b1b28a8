"""The built-in `summarize`: on a tiny random encoder, and its quality on the real weights."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import random
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import tiny_encoder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from functions._encoder import Encoder
from functions._extractive import SECTION, best, kept, sections
from functions._sentences import sentences
from functions.embed import minilm
from functions.generate import Ask, Message, generate
from functions.summarize import _READ_BYTES, SummarizeInput, Summary, summarize
from headrace import Call, Device, InvalidInput, PermanentError
from headrace.errors import CallStopped
from headrace.sdk.bytecode import heavy_imports

np = pytest.importorskip("numpy")
pytest.importorskip("sentence_transformers")
pytest.importorskip("sentencex")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, device):
    with pytest.MonkeyPatch.context() as patch:
        folder = tiny_encoder.build(tmp_path_factory.mktemp("models"))
        patch.setenv("HEADRACE_EMBED_MODEL", str(folder))
        return minilm.load(Device.parse(device))


def call_with(**options: Any) -> Call:
    end = time.monotonic() + 60
    return Call(job_id="j", attempt=1, soft_at=end, deadline_at=end, **options)


def summarized(encoder: Encoder, text: str, call: Call | None = None, **wanted: Any) -> Summary:
    body = json.dumps({"text": text, **wanted}).encode()
    return asyncio.run(summarize.fn(summarize.decode(body), call=call or call_with(), encoder=encoder))


def long_text(number: int) -> str:
    words = random.Random(5)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return " ".join(
        " ".join("".join(words.choices(letters, k=5)) for _ in range(4)).capitalize() + "."
        for _ in range(number)
    )


def test_its_manifest_says_what_it_takes():
    assert "sentence_transformers" in heavy_imports([summarize])
    assert summarize.manifest.cost.of({"text": "abc"}) == 3
    assert summarize.manifest.budget.sync == 10
    assert "may state what the text doesn't" in summarize.manifest.description
    (example,) = summarize.manifest.examples
    assert summarize.decode(json.dumps(example).encode()).sentences == 1


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "/text"),
        ({"text": ""}, "/text"),
        ({"text": " \n\t "}, "/text"),
        ({"text": "\x00\x01\u200b"}, "/text"),
        ({"text": 5}, "/text"),
        ({"text": "a" * 1_000_001}, "/text"),
        ({"text": "a", "sentences": 0}, "/sentences"),
        ({"text": "a", "sentences": -1}, "/sentences"),
        ({"text": "a", "sentences": 1001}, "/sentences"),
        ({"text": "a", "ratio": 0}, "/ratio"),
        ({"text": "a", "ratio": 1.5}, "/ratio"),
        ({"text": "a", "ratio": None}, "/ratio"),
        ({"text": "a", "sentences": 3, "ratio": 0.5}, ""),
        ({"text": "a", "language": "German"}, "/language"),
        ({"text": "a", "language": ""}, "/language"),
        ({"text": "a", "mode": "poetic"}, "/mode"),
    ],
)
def test_bad_inputs_are_refused(body, path):
    with pytest.raises(InvalidInput) as caught:
        summarize.decode(json.dumps(body).encode())
    assert caught.value.path == path


def test_its_schema_refuses_both_lengths():
    schema = summarize.manifest.input_schema
    assert schema["not"] == {"required": ["sentences", "ratio"]}
    assert "default" not in schema["properties"]["ratio"]


def test_the_wanted_number_is_taken_in_the_order_of_the_text(encoder):
    text = long_text(40)
    output = summarized(encoder, text, sentences=5)
    indices = [one.index for one in output.sentences]
    assert len(indices) == 5
    assert indices == sorted(set(indices))
    assert output.summary == " ".join(one.text for one in output.sentences)
    assert output.usage.tokens > 40
    assert (output.mode, output.notice, output.language) == ("extractive", None, "en")
    assert len(summarized(encoder, text).sentences) == 3
    assert len(summarized(encoder, text, ratio=0.25).sentences) == 10
    assert len(summarized(encoder, text, ratio=0.001).sentences) == 1
    assert len(summarized(encoder, text, sentences=1000).sentences) == 40


def test_chinese_is_joined_without_spaces(encoder):
    output = summarized(encoder, "我喜欢水。你呢?他走了。", sentences=3)
    assert output.summary == "我喜欢水。你呢?他走了。"
    assert output.language == "zh"


def test_the_language_given_decides_where_sentences_end(encoder):
    text = "Der 2. Versuch gelang."
    assert len(summarized(encoder, text, language="de").sentences) == 1
    assert len(summarized(encoder, text, language="en").sentences) == 2


@pytest.mark.parametrize(
    "text", ["🙂🙂🙂", "\u0301", "a\x00b\x01. c", "x" * 5000, "and so on, " * 800, "\r\n- a\n- b", "»" * 3000]
)
def test_what_is_hardly_text_is_summarized(encoder, text):
    output = summarized(encoder, text)
    assert 1 <= len(output.sentences) <= 3
    assert all(text[one.start : one.end] == one.text for one in output.sentences)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=400), st.integers(1, 5))
def test_every_sentence_is_the_text_s_own(encoder, text, wanted):
    try:
        given_ = SummarizeInput(text=text + ". A stop. Another one!", sentences=wanted)
    except ValueError:
        return
    output = asyncio.run(summarize.fn(given_, call=call_with(), encoder=encoder))
    places = [(one.start, one.end) for one in output.sentences]
    assert places == sorted(places)
    assert [given_.text[start:end] for start, end in places] == [one.text for one in output.sentences]
    spans = sentences(given_.text, output.language)
    assert places == [tuple(spans[one.index]) for one in output.sentences]


def test_sections_cover_everything_and_are_small():
    for number in (1, SECTION, SECTION + 1, 12_345, 1_000_000):
        found = list(sections(number))
        assert [index for section in found for index in section] == list(range(number))
        assert max(map(len, found)) <= SECTION
        for wanted in (1, 3, 1000):
            handed_on = kept(wanted, len(found)) * len(found)
            assert handed_on <= 2 * (wanted + 1000 + len(found))
            assert handed_on >= min(number, wanted)


def test_a_long_text_is_read_by_sections_which_tell_how_far_it_is(encoder):
    told: list[tuple[float, str]] = []
    call = call_with(report=lambda fraction, message: told.append((fraction, message)))
    output = summarized(encoder, long_text(5 * SECTION), call, sentences=7)
    assert len(output.sentences) == 7
    assert [fraction for fraction, _ in told] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    assert told[1][1] == "section 2 of 5"


def test_a_stopped_call_ends_between_passes(encoder, monkeypatch):
    call = call_with()
    passes: list[int] = []
    one_pass = Encoder.vectors

    def stopping(encoder, tokens):
        passes.append(len(tokens))
        call.stop()
        return one_pass(encoder, tokens)

    monkeypatch.setattr(Encoder, "vectors", stopping)
    with pytest.raises(CallStopped):
        summarized(encoder, long_text(500), call)
    assert len(passes) == 1


def test_a_short_text_does_not_wait_for_the_end_of_a_long_one(encoder):
    async def together() -> list[str]:
        ended: list[str] = []

        async def one(name: str, text: str) -> None:
            given_ = SummarizeInput(text=text)
            await summarize.fn(given_, call=call_with(), encoder=encoder)
            ended.append(name)

        await asyncio.gather(one("long", long_text(2000)), one("short", long_text(5)))
        return ended

    assert asyncio.run(together()) == ["short", "long"]


def test_what_is_central_is_taken_and_nothing_twice():
    def row(angle: float) -> list[float]:
        return [np.cos(angle), np.sin(angle)]

    vectors = np.asarray([row(3), row(0.1), row(0.1), row(0.9), row(1)], dtype=np.float32)
    one, two = (best(vectors, [50, 51, 52, 53, 54], wanted) for wanted in (1, 2))
    assert one == [3]
    assert two in ([1, 3], [2, 3])
    assert best(vectors, range(5), 9) == [0, 1, 2, 3, 4]
    assert best(np.asarray([row(1)], dtype=np.float32), [0], 1) == [0]


class Writer:
    """Stands in for the site: answers what is asked of `generate`."""

    def __init__(self, text: str, finish_reason: str = "stop") -> None:
        self._answer = SimpleNamespace(
            text=text, finish_reason=finish_reason, usage=SimpleNamespace(tokens=1000)
        )
        self.asked: Any = None

    async def __call__(self, function: Any, given_: Any) -> Any:
        assert function is generate
        self.asked = given_
        return self._answer


def test_the_language_model_s_words_are_marked_as_such(encoder):
    writer = Writer(" It is about letters. ")
    text = long_text(12)
    output = summarized(encoder, text, call_with(invoke=writer), mode="abstractive", sentences=2)
    assert output.summary == "It is about letters."
    assert output.mode == "abstractive"
    assert output.notice is not None
    assert "may say what the text doesn't" in output.notice
    assert "cut off" not in output.notice
    assert len(output.sentences) == 12
    assert output.usage.tokens >= 1000
    assert text in writer.asked.messages[-1].content
    assert "2 sentences" in writer.asked.messages[-1].content


def test_of_a_long_text_the_language_model_gets_what_says_the_most_and_fits(encoder):
    writer = Writer("Letters.", "length")
    text = long_text(900)
    output = summarized(encoder, text, call_with(invoke=writer), mode="abstractive", sentences=1)
    assert _READ_BYTES / 2 < sum(len(one.text.encode()) + 1 for one in output.sentences) <= _READ_BYTES
    assert "1 sentence:" in writer.asked.messages[-1].content
    assert output.notice is not None
    assert "cut off" in output.notice


def test_progress_never_goes_back_where_a_language_model_writes(encoder):
    told: list[float] = []
    call = call_with(invoke=Writer("Letters."), report=lambda fraction, _: told.append(fraction))
    summarized(encoder, long_text(30 * SECTION), call, mode="abstractive")
    assert told == sorted(told)
    assert told[-2:] == pytest.approx([0.9 * 29 / 30, 0.9])


def test_a_language_model_that_writes_nothing_fails_the_call(encoder):
    with pytest.raises(PermanentError, match="wrote nothing"):
        summarized(encoder, "A text.", call_with(invoke=Writer(" \n")), mode="abstractive")


@pytest.mark.real_models
def test_the_sentence_that_says_what_an_article_is_about_is_there(monkeypatch, device):
    """In eight of ten at least, whose marks are older than the method; half of them it has never seen."""
    monkeypatch.delenv("HEADRACE_EMBED_MODEL", raising=False)
    quality = quality_module()
    real = minilm.load(Device.parse(device))
    articles = quality.articles()
    summaries = [quality.summary_of(article, real) for article in articles]
    assert all(map(quality.is_faithful, articles, summaries))
    there = [
        quality.is_in(article, [one.text for one in summary.sentences])
        for article, summary in zip(articles, summaries, strict=True)
    ]
    assert len(there) == 10
    assert sum(there) >= 8
    assert [one.language for one in summaries] == [one.language for one in articles]


def quality_module() -> Any:
    """loadtests/quality/summarize.py: by its place, as the name is taken."""
    place = Path(__file__).parents[3] / "loadtests" / "quality" / "summarize.py"
    spec = importlib.util.spec_from_file_location("quality_of_summarize", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_what_it_asks_of_the_language_model_can_be_sent():
    """Of the two ways to ask, just one may be given."""
    asked = Ask(messages=[Message(role="user", content="Summarize this.")], max_tokens=64)
    assert generate.decode(generate.encode_input(asked)).messages == asked.messages
