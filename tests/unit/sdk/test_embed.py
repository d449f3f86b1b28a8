"""The built-in `embed`, through its real loader: on a tiny random encoder, and once on the real weights."""

# ruff: noqa: PLC0415 - the libraries take seconds to import, and may not be there

from __future__ import annotations

import base64
import copy
import json
import math
import struct
import time
from typing import Any

import pytest
from harness import tiny_encoder

from functions._encoder import Encoder
from functions._passes import TOKENS_PER_PASS, passes
from functions.embed import EmbedInput, EmbedOutput, Usage, embed, minilm
from headrace import Call, Device, InvalidInput
from headrace.errors import CallStopped
from headrace.sdk.bytecode import heavy_imports

torch = pytest.importorskip("torch")
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
        ({"texts": ["a"] * 10_000}, "/texts"),
        ({"texts": ["a" * 2**20]}, "/texts/0"),
        ({"texts": ["a"], "dimensions": 0}, "/dimensions"),
        ({"texts": ["a"], "dimensions": -3}, "/dimensions"),
        ({"texts": ["a"], "dimensions": True}, "/dimensions"),
        ({"texts": ["a"], "dimensions": "8"}, "/dimensions"),
        ({"texts": ["a"], "dimensions": 8.5}, "/dimensions"),
        ({"texts": ["a"], "encoding_format": "hex"}, "/encoding_format"),
        ({"texts": ["a"], "encoding_format": None}, "/encoding_format"),
        ({"texts": ["a"], "normalize": 1}, "/normalize"),
        ({"texts": ["a"], "normalize": "yes"}, "/normalize"),
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
    assert set(json.loads(embed.encode(output))) == {"vectors", "truncated", "model", "usage"}


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


ODD = [
    "水力",
    "\u0000",
    "🙂🙃🙂",
    " ",
    "مياه",
    "e\u0301\u0323\u0302",
    "\u200d\ufeff",
    "\x1b[31m\x07",
    "\r\n\t",
    "a" * 32_768,
]


def test_words_in_unknown_scripts_and_control_characters_are_embedded(encoder):
    for output in (embedded(encoder, *ODD), *(embedded(encoder, text) for text in ODD)):
        lengths = [length(vector) for vector in output.vectors]
        assert lengths == pytest.approx([1] * len(lengths), abs=1e-6)


def test_a_text_that_is_cut_is_named_with_its_length(encoder):
    long = "a" * 80
    outputs = joined(encoder, ["abc", long, "x"], ["b"], [long, long + "bcd"])
    limit = tiny_encoder.MAX_TOKENS
    said = [[(one.index, one.tokens, one.read) for one in output.truncated] for output in outputs]
    assert said == [[(1, 82, limit)], [], [(0, 82, limit), (1, 85, limit)]]
    assert [output.usage.tokens for output in outputs] == [5 + limit + 3, 3, 2 * limit]


def test_a_text_that_just_fits_is_not_cut(encoder):
    output = embedded(encoder, "a" * (tiny_encoder.MAX_TOKENS - 2), "a" * (tiny_encoder.MAX_TOKENS - 1))
    assert [(one.index, one.tokens) for one in output.truncated] == [(1, tiny_encoder.MAX_TOKENS + 1)]


def formed(encoder, *inputs: dict[str, Any]) -> list[Any]:
    """The outputs of calls with options, joined."""
    given = [EmbedInput(**one) for one in inputs]
    return embed.fn(given, calls=[call_with() for _ in given], encoder=encoder)


def test_calls_with_different_options_share_a_pass(fp32_encoder, monkeypatch):
    passes = stopping(monkeypatch, fp32_encoder)
    texts = ["abc", "a longer text", "x"]
    plain, short, raw, packed = formed(
        fp32_encoder,
        {"texts": texts},
        {"texts": texts, "dimensions": 8},
        {"texts": texts, "dimensions": 8, "normalize": False},
        {"texts": texts, "encoding_format": "base64"},
    )
    assert passes == [12]
    for whole, cut, bare, text in zip(plain.vectors, short.vectors, raw.vectors, packed.vectors, strict=True):
        assert (len(whole), len(cut), len(bare)) == (tiny_encoder.DIMENSIONS, 8, 8)
        assert bare == pytest.approx(whole[:8], abs=1e-6)
        assert length(bare) < 0.99
        assert cut == pytest.approx([x / length(bare) for x in bare], abs=1e-6)
        numbers = struct.unpack(f"<{tiny_encoder.DIMENSIONS}f", base64.b64decode(text))
        assert list(numbers) == pytest.approx(whole, abs=1e-6)


def test_without_normalize_vectors_are_as_the_model_gives_them(fp32_encoder):
    bare = copy.deepcopy(fp32_encoder.library)
    del bare[-1]  # which makes unit lengths
    encoder = Encoder(bare)
    (output,) = formed(encoder, {"texts": ["abc", "a longer text"], "normalize": False})
    theirs = bare.encode(["abc", "a longer text"]).tolist()
    for ours, of_library in zip(output.vectors, theirs, strict=True):
        assert ours == pytest.approx(of_library, abs=1e-5)
    assert abs(length(output.vectors[0]) - 1) > 0.1


def test_more_dimensions_than_the_model_has_are_refused_and_others_go_on(encoder):
    whole, refused, other = formed(
        encoder,
        {"texts": ["abc"], "dimensions": tiny_encoder.DIMENSIONS},
        {"texts": ["abc"], "dimensions": tiny_encoder.DIMENSIONS + 1},
        {"texts": ["x"]},
    )
    assert len(whole.vectors[0]) == len(other.vectors[0]) == tiny_encoder.DIMENSIONS
    assert isinstance(refused, InvalidInput)
    assert refused.path == "/dimensions"
    assert refused.message.startswith("33 dimensions are asked for, and the vectors of ")
    assert refused.message.endswith(" have 32")
    assert [type(one) for one in formed(encoder, {"texts": ["abc"], "dimensions": 99})] == [InvalidInput]


def test_outputs_of_both_forms_are_written(encoder):
    floats, packed = formed(encoder, {"texts": ["abc"]}, {"texts": ["abc"], "encoding_format": "base64"})
    written = [json.loads(embed.encode(one)) for one in (floats, packed)]
    assert [type(one["vectors"][0]) for one in written] == [list, str]
    assert written[0]["truncated"] == []
    assert written[0]["model"].endswith("encoder")


def roberta(folder, dense: bool) -> Any:
    """An encoder of another family, that adds a layer after pooling and keeps lengths as they are."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
    from transformers import RobertaConfig, RobertaModel

    tokenizer = tiny_encoder._tokenizer()
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=50,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        RobertaModel(config).eval().save_pretrained(folder / "roberta")
        tokenizer.save_pretrained(folder / "roberta")
        modules = [Transformer(str(folder / "roberta"), max_seq_length=40), Pooling(32)]
        if dense:
            modules.append(Dense(32, 12))
        SentenceTransformer(modules=modules, device="cpu").save(str(folder / "encoder"))
    return folder / "encoder"


@pytest.mark.parametrize("dense", [True, False])
def test_an_encoder_of_another_family_gives_what_its_library_gives(tmp_path, monkeypatch, dense):
    monkeypatch.setenv("HEADRACE_EMBED_MODEL", str(roberta(tmp_path, dense)))
    monkeypatch.setattr("functions.embed.native_dtype", lambda _: torch.float32)
    loaded = minilm.load(Device())
    texts = ["abc", "a longer text with words", "x" * 60]
    (output,) = formed(loaded, {"texts": texts, "normalize": False})
    theirs = loaded.library.encode(texts).tolist()
    for ours, of_library in zip(output.vectors, theirs, strict=True):
        assert ours == pytest.approx(of_library, abs=1e-5)
    assert loaded.dimensions == (12 if dense else 32)
    assert [(one.index, one.tokens, one.read) for one in output.truncated] == [(2, 62, 40)]


def test_an_encoder_without_a_network_works(tmp_path, monkeypatch):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    words = StaticEmbedding(tiny_encoder._tokenizer().backend_tokenizer, embedding_dim=16)
    SentenceTransformer(modules=[words], device="cpu").save(str(tmp_path / "static"))
    monkeypatch.setenv("HEADRACE_EMBED_MODEL", str(tmp_path / "static"))
    monkeypatch.setattr("functions.embed.native_dtype", lambda _: torch.float32)
    loaded = minilm.load(Device())
    texts = ["abc", "a longer text " * 50]
    (output,) = formed(loaded, {"texts": texts, "normalize": False})
    for ours, of_library in zip(output.vectors, loaded.library.encode(texts).tolist(), strict=True):
        assert ours == pytest.approx(of_library, abs=1e-5)
    assert output.truncated == []


def test_what_an_encoder_wants_before_each_text_is_there(fp32_encoder):
    library = copy.deepcopy(fp32_encoder.library)
    library.prompts, library.default_prompt_name = {"query": "query: "}, "query"
    ours = embedded(Encoder(library), "abc").vectors[0]
    assert ours == pytest.approx(library.encode(["abc"], normalize_embeddings=True)[0].tolist(), abs=1e-5)
    assert ours == pytest.approx(embedded(fp32_encoder, "query: abc").vectors[0], abs=1e-6)
    assert similarity(ours, embedded(fp32_encoder, "abc").vectors[0]) < 0.9999


def test_passes_group_neighbours_and_stay_within_the_limit():
    tokens = [[0] * n for n in (9, 1, 5, 2, 30, 1, 8)]
    found = list(passes(tokens, limit=18))
    assert found == [[1, 5, 3], [2, 6], [0], [4]]
    assert sorted(index for group in found for index in group) == list(range(len(tokens)))


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
    vectors = Encoder.vectors

    def one_pass(encoder, tokens):
        passes.append(len(tokens))
        for call in calls:
            call.stop()
        return vectors(encoder, tokens)

    monkeypatch.setattr(Encoder, "vectors", one_pass)
    monkeypatch.setitem(TOKENS_PER_PASS, encoder.device.type, 2048)
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


@pytest.mark.parametrize("form", ["float", "base64"])
def test_whatever_form_a_stopped_call_wants_others_get_their_vectors(encoder, monkeypatch, form):
    whole = call_with()
    calls = [call_with(joined_to=whole) for _ in range(2)]
    stopping(monkeypatch, encoder, calls[0])
    inputs = [
        EmbedInput(texts=["a", *["a" * 60] * 100], encoding_format=form),
        EmbedInput(texts=["b" * 60] * 20),
    ]
    stopped, other = embed.fn(inputs, calls=calls, encoder=encoder)
    assert stopped.vectors[0]
    assert not stopped.vectors[-1]
    assert [length(vector) for vector in other.vectors] == pytest.approx([1] * 20, abs=1e-6)


def test_the_largest_output_of_a_large_encoder_fits():
    """Some have 4,096 dimensions."""
    vectors = [[-0.12345678] * 4096] * 256
    output = EmbedOutput(vectors=vectors, truncated=[], model="large", usage=Usage(tokens=1))
    assert len(embed.encode(output)) <= embed.manifest.limits.output


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
