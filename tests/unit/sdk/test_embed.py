"""The built-in `embed`, through its real loader: on a tiny random encoder, and once on the real weights."""

from __future__ import annotations

import copy
import json
import math
import time
from typing import Any

import pytest
from harness import tiny_encoder

from functions._encoder import Encoder
from functions.embed import _TOKENS_PER_PASS, EmbedInput, EmbedOutput, _passes, embed, minilm
from headrace import Call, Device, InvalidInput
from headrace.errors import CallStopped
from headrace.sdk.bytecode import heavy_imports

pytest.importorskip("sentence_transformers")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, device):
    with pytest.MonkeyPatch.context() as patch:
        folder = tiny_encoder.build(tmp_path_factory.mktemp("models"))
        patch.setenv("HEADRACE_EMBED_MODEL", str(folder))
        return minilm.load(Device.parse(device))


@pytest.fixture(scope="module")
def fp32_encoder(encoder):
    return Encoder(copy.deepcopy(encoder.library).float())


def call_with(**options: Any) -> Call:
    end = time.monotonic() + 60
    return Call(job_id="j", attempt=1, soft_at=end, deadline_at=end, **options)


def joined(encoder, *inputs: list[str]) -> list[EmbedOutput]:
    calls = [call_with() for _ in inputs]
    return embed.fn([EmbedInput(texts=texts) for texts in inputs], calls=calls, encoder=encoder)


def embedded(encoder, *texts: str) -> EmbedOutput:
    (output,) = joined(encoder, list(texts))
    return output


def length(vector: list[float]) -> float:
    return math.sqrt(math.fsum(x * x for x in vector))


def similarity(left: list[float], right: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(left, right, strict=True))


def test_its_manifest_says_what_it_takes():
    assert heavy_imports([embed]) == ["sentence_transformers", "transformers"]  # which import torch
    assert embed.name == "embed"
    assert embed.manifest.cost.of({"texts": ["ab", "cde"]}) == 2 + 3 + 2 * 17
    assert embed.is_batched
    assert embed.manifest.budget.sync == 10
    assert embed.manifest.budget.hard == 60
    (example,) = embed.manifest.examples
    assert len(embed.decode(json.dumps(example).encode()).texts) == 2


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "/texts"),
        ({"texts": []}, "/texts"),
        ({"texts": ["a"] * 257}, "/texts"),
        ({"texts": ["a", ""]}, "/texts/1"),
        ({"texts": ["a" * 32_769]}, "/texts/0"),
        ({"texts": "a"}, "/texts"),
        ({"texts": [1]}, "/texts/0"),
    ],
)
def test_bad_inputs_are_refused(body, path):
    with pytest.raises(InvalidInput) as caught:
        embed.decode(json.dumps(body).encode())
    assert caught.value.path == path


def test_the_largest_input_is_accepted():
    assert len(embed.decode(json.dumps({"texts": ["a" * 32_768] * 256}).encode()).texts) == 256


def test_the_model_is_on_its_device(encoder, device):
    assert {parameter.device.type for parameter in encoder.library.parameters()} == {device}


def test_vectors_have_unit_length_and_tokens_are_counted(encoder):
    output = embedded(encoder, "abc", "x")
    assert [len(vector) for vector in output.vectors] == [tiny_encoder.DIMENSIONS] * 2
    assert [length(vector) for vector in output.vectors] == pytest.approx([1, 1], abs=1e-6)
    assert output.usage.tokens == 5 + 3  # each with a start and an end
    assert set(json.loads(embed.encode(output))) == {"vectors", "usage"}


def test_the_order_of_the_texts_is_kept_whatever_their_lengths(encoder):
    texts = ["b" * 40, "a", "c" * 20, "a", "d", "e" * 30] * 12
    together = embedded(encoder, *texts).vectors
    alone = {text: embedded(encoder, text).vectors[0] for text in set(texts)}
    for text, vector in zip(texts, together, strict=True):
        assert similarity(vector, alone[text]) > 0.999
        others = [similarity(vector, other) for name, other in alone.items() if name != text]
        assert similarity(vector, alone[text]) > max(others)


def test_it_agrees_with_the_library(encoder):
    texts = ["abc", "a longer text with words", "x y z"]
    found = encoder.library.encode(texts).tolist()
    for ours, theirs in zip(embedded(encoder, *texts).vectors, found, strict=True):
        assert similarity(ours, theirs) / length(theirs) > 0.999


def test_texts_are_read_up_to_the_encoders_limit(encoder):
    long = "a" * 80
    output = embedded(encoder, long, long + "bcd")
    assert output.vectors[0] == output.vectors[1]
    assert output.usage.tokens == 2 * tiny_encoder.MAX_TOKENS


def test_words_in_unknown_scripts_and_control_characters_are_embedded(encoder):
    output = embedded(encoder, "水力", "\u0000", "🙂 ok", " ")
    assert [length(vector) for vector in output.vectors] == pytest.approx([1] * 4, abs=1e-6)


def test_passes_group_neighbours_and_stay_within_the_limit():
    tokens = [[0] * n for n in (9, 1, 5, 2, 30, 1, 8)]
    passes = list(_passes(tokens, limit=18))
    assert passes == [[1, 5, 3], [2, 6], [0], [4]]
    assert sorted(index for group in passes for index in group) == list(range(len(tokens)))


def test_joined_calls_get_what_each_gets_alone(fp32_encoder):
    inputs = [["b" * 40, "a", "x y"], ["c" * 20], ["a" * (3 * tiny_encoder.MAX_TOKENS)], ["d", "e" * 30] * 40]
    together = joined(fp32_encoder, *inputs)
    for texts, output in zip(inputs, together, strict=True):
        alone = embedded(fp32_encoder, *texts)
        assert output.usage == alone.usage
        for ours, theirs in zip(output.vectors, alone.vectors, strict=True):
            assert ours == pytest.approx(theirs, abs=1e-6)


def stopping(monkeypatch, encoder, *calls: Call) -> list[int]:
    """Have these calls stopped after the first pass; returns the list of how many texts each pass has."""
    passes: list[int] = []
    embed_tokens = Encoder.embed

    def one_pass(encoder, tokens):
        passes.append(len(tokens))
        for call in calls:
            call.stop()
        return embed_tokens(encoder, tokens)

    monkeypatch.setattr(Encoder, "embed", one_pass)
    monkeypatch.setitem(_TOKENS_PER_PASS, encoder.device.type, 2048)
    return passes


def test_a_stopped_call_ends_between_passes(encoder, monkeypatch):
    call = call_with()
    passes = stopping(monkeypatch, encoder, call)
    with pytest.raises(CallStopped):
        embed.fn([EmbedInput(texts=["a" * 60] * 200)], calls=[call], encoder=encoder)
    assert len(passes) == 1


def test_texts_of_a_stopped_call_are_left_out_and_others_are_not(encoder, monkeypatch):
    whole = call_with()
    calls = [call_with(joined_to=whole) for _ in range(2)]
    passes = stopping(monkeypatch, encoder, calls[0])
    inputs = [EmbedInput(texts=["a" * 60] * 100), EmbedInput(texts=["b" * 60] * 20)]
    outputs = embed.fn(inputs, calls=calls, encoder=encoder)
    assert sum(passes) < 120
    assert [length(vector) for vector in outputs[1].vectors] == pytest.approx([1] * 20, abs=1e-6)


def test_a_missing_model_folder_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADRACE_EMBED_MODEL", str(tmp_path / "nothing"))
    with pytest.raises(Exception, match="nothing"):
        minilm.load(Device())


@pytest.mark.real_models
def test_the_real_weights_know_what_belongs_together(monkeypatch, device):
    monkeypatch.delenv("HEADRACE_EMBED_MODEL", raising=False)
    real = minilm.load(Device.parse(device))
    water, river, stocks = embedded(
        real,
        "The water drives a turbine.",
        "A river's flow turns the wheel of a mill.",
        "Shares fell sharply on the stock exchange.",
    ).vectors
    assert {len(water), len(river), len(stocks)} == {384}
    assert [length(vector) for vector in (water, river, stocks)] == pytest.approx([1, 1, 1], abs=1e-5)
    assert similarity(water, river) > similarity(water, stocks) + 0.2
    assert similarity(water, river) > similarity(river, stocks) + 0.2
