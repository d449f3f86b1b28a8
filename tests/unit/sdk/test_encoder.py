"""Passes without padding, and weights laid out once: they give what the library gives."""

# ruff: noqa: PLC0415 - the libraries take seconds to import, and may not be there

from __future__ import annotations

import copy
import math

import pytest
from harness import tiny_encoder

from functions import _bert
from functions._bert import _FP32_TOKENS
from functions._encoder import Encoder
from functions.embed import minilm
from headrace import Device

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

LENGTHS = [1, 40, 3, 17, 28, 29, 30, 31, 62, 2, 1, 55]

in_bf16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU computes no bf16 products"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The tiny encoder in fp32 on the CPU, as its library loads it."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(tiny_encoder.build(tmp_path_factory.mktemp("models"))), device="cpu")


@pytest.fixture(scope="module")
def unpadded(library):
    encoder = Encoder(library)
    assert encoder._in_one_row is not None
    return encoder


def padded(library) -> Encoder:
    """An encoder that pads."""
    encoder = Encoder(library)
    encoder._in_one_row = None
    return encoder


def similarities(left: list[list[float]], right: list[list[float]]) -> list[float]:
    """Cosines of vectors of unit length."""
    return [math.fsum(map(float.__mul__, one, other)) for one, other in zip(left, right, strict=True)]


@pytest.mark.parametrize(
    "lengths",
    [
        LENGTHS,
        [5],
        [1, 1, 1],
        [30, 7],
        [31, 7],
        [tiny_encoder.MAX_TOKENS],
        [tiny_encoder.MAX_TOKENS * 2, 1, 9],
    ],
    ids=str,
)
def test_without_padding_the_vectors_are_the_same(library, unpadded, lengths):
    """Texts of so many characters, which is tokens: of few, and of more than attention computes in fp32."""
    letters = "the quick brown fox jumps over a lazy dog".replace(" ", "")
    texts = [(" ".join(letters[at:] + letters * 4))[: 2 * n - 1] for at, n in enumerate(lengths)]
    tokens = unpadded.tokenize(texts)
    assert max(map(len, tokens)) == min(tiny_encoder.MAX_TOKENS, 2 + max(lengths))
    ours, theirs = torch.tensor(unpadded.embed(tokens)), torch.tensor(padded(library).embed(tokens))
    assert (ours - theirs).abs().max() <= 1e-6
    assert (ours[:1] - torch.tensor(unpadded.embed(tokens[:1]))).abs().max() <= 1e-6


def test_attention_in_either_type_is_tried():
    assert min(LENGTHS) + 2 <= 30 + 2 == _FP32_TOKENS < 31 + 2 <= max(LENGTHS) + 2


def test_it_leaves_padding_out(library):
    rows = []
    bert = Encoder(library)._in_one_row
    first = bert.layers[0]
    bert.layers[0] = lambda row, texts: rows.append(row.shape) or first(row, texts)
    bert(_bert.Texts.of([[2, 4, 3], [2, 3], [2, 4, 5, 6, 3]]))
    assert rows == [(10, tiny_encoder.DIMENSIONS)]


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=in_bf16)], ids=str)
def test_the_library_s_own_encoder_is_not_changed(library, dtype):
    library = copy.deepcopy(library).to(dtype)
    texts = ["abc", "a longer text with words"]
    vectors = library.encode(texts)
    weights = {name: tensor.clone() for name, tensor in library.state_dict().items()}
    encoder = Encoder(library)
    encoder.embed(encoder.tokenize(texts))
    assert not any("forward" in vars(module) for module in library.modules())
    assert (library.encode(texts) == vectors).all()
    assert library.state_dict().keys() == weights.keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in library.state_dict().items())


@in_bf16
def test_what_passes_between_layers_is_in_fp32_also_where_products_are_not(library):
    bert = Encoder(copy.deepcopy(library).bfloat16())._in_one_row
    passed = []
    last = bert.layers[-1]
    bert.layers[-1] = lambda row, texts: passed.append(row) or last(row, texts)
    with torch.inference_mode():
        made = bert(_bert.Texts.of([[2, 4, 3], [2, 5, 6, 3]]))
    (row,) = passed
    assert (row.dtype, made.dtype) == (torch.float32, torch.bfloat16)
    assert not torch.equal(row, row.bfloat16().float())


def test_normalisations_stay_in_fp32_while_that_is_asked_for(tmp_path):
    from sentence_transformers import SentenceTransformer

    folder = str(tiny_encoder.build(tmp_path))

    def loaded() -> dict[str, torch.dtype]:
        model = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": torch.bfloat16})
        return {name: parameter.dtype for name, parameter in model.named_parameters()}

    with _bert.norms_in_fp32():
        kept = loaded()
    assert {name for name, dtype in kept.items() if dtype == torch.float32} == {
        name for name in kept if "LayerNorm" in name
    }
    assert len(kept) > sum("LayerNorm" in name for name in kept) > 0
    assert set(loaded().values()) == {torch.bfloat16}


TEXTS = ["", "abc", "a" * 30, "abc " * 40, "[CLS] [PAD] x", "\n\t", "über 漢字", *(["abc d"] * 30)]


def test_texts_are_read_as_the_library_reads_them(library):
    """Also after the library has set its tokenizer for itself: it pads, and cuts at another limit."""
    encoder = Encoder(library)
    theirs = library.tokenizer(TEXTS, truncation=True, max_length=library.max_seq_length)["input_ids"]
    assert max(map(len, theirs)) == tiny_encoder.MAX_TOKENS < len("abc " * 40)
    assert encoder.tokenize(TEXTS) == theirs
    library.tokenizer(TEXTS, truncation=True, max_length=9, padding=True)
    assert encoder.tokenize(TEXTS) == theirs


def test_special_tokens_that_are_to_be_read_as_text_are(library):
    library = copy.deepcopy(library)
    before = Encoder(library).tokenize(["[CLS] x"])
    library.tokenizer.split_special_tokens = True
    found = Encoder(library).tokenize(["[CLS] x"])
    assert found != before
    assert found == library.tokenizer(["[CLS] x"])["input_ids"]


def test_a_text_without_any_token_is_padded(library, unpadded):
    ours, theirs = (one.embed([[], [2, 4, 3]]) for one in (unpadded, padded(library)))
    assert ours == theirs
    assert not any(map(math.isnan, ours[0]))


def test_a_tokenizer_that_is_not_of_the_fast_kind_reads_by_itself(library, monkeypatch):
    monkeypatch.setattr(type(library.tokenizer), "is_fast", False)
    encoder = Encoder(library)
    monkeypatch.setattr(
        type(library.tokenizer), "__call__", lambda _, texts, **__: {"input_ids": [[len(texts)]]}
    )
    assert encoder.tokenize(TEXTS) == [[len(TEXTS)]]


def test_a_family_that_is_not_bert_is_padded(library):
    """RoBERTa counts positions from 2: texts in one row would have to as well."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import RobertaConfig, RobertaModel

    library = copy.deepcopy(library)
    config = RobertaConfig(
        vocab_size=len(library.tokenizer),
        hidden_size=tiny_encoder.DIMENSIONS,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=2 * tiny_encoder.DIMENSIONS,
        max_position_embeddings=tiny_encoder.MAX_TOKENS + 2,
        pad_token_id=library.tokenizer.pad_token_id,
    )
    library[0].model = RobertaModel(config).eval()
    other = SentenceTransformer(modules=[library[0], Pooling(tiny_encoder.DIMENSIONS)], device="cpu")
    encoder = Encoder(other)
    assert encoder._in_one_row is None
    texts = ["abc", "a longer text with words"]
    ours = encoder.embed(encoder.tokenize(texts))
    assert similarities(ours, other.encode(texts, normalize_embeddings=True).tolist()) == pytest.approx(
        [1, 1]
    )


def test_on_another_device_texts_are_padded(library):
    class Elsewhere:
        """The encoder as a GPU would have it."""

        device = torch.device("cuda", 0)
        tokenizer, max_seq_length = library.tokenizer, library.max_seq_length

        def __getitem__(self, index):
            return library[index]

        def __getattr__(self, name):
            return getattr(library, name)

    assert Encoder(Elsewhere())._in_one_row is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", ["a decoder", "an adapter", "no bias", "training", "a hook", "a hook before", "another forward"]
)
def test_a_bert_with_other_parts_is_padded(library, change):
    library = copy.deepcopy(library)
    bert = library[0].auto_model
    attention = bert.encoder.layer[1].attention.self
    match change:
        case "a decoder":
            bert.config.is_decoder = True
        case "an adapter":
            attention.value = torch.nn.Sequential(attention.value)
        case "no bias":
            attention.key.bias = None
        case "training":
            bert.encoder.layer[1].train()
        case "a hook":
            attention.value.register_forward_hook(lambda *_: None)
        case "a hook before":
            bert.encoder.register_forward_pre_hook(lambda *_: None)
        case "another forward":
            attention.value.forward = attention.key.forward
    assert Encoder(library)._in_one_row is None


@in_bf16
def test_weights_laid_out_once_give_what_plain_ones_give(library, monkeypatch):
    library = copy.deepcopy(library).bfloat16()
    with monkeypatch.context() as patch:
        patch.setattr("functions._prepacked._pays", lambda *_: False)
        plain = Encoder(library)
    laid_out = Encoder(library)
    with monkeypatch.context() as patch:
        patch.delattr("torch.nn.functional.linear")  # what computes with plain ones
        texts = ["a" * length + "bcd" for length in LENGTHS]
        batches = [plain.tokenize(some) for some in (texts, texts[:1], texts * 10)]
        found = [laid_out.embed(tokens) for tokens in batches]
    for tokens, ours in zip(batches, found, strict=True):
        assert min(similarities(plain.embed(tokens), ours)) >= 0.9999


def test_weights_in_fp32_are_the_library_s_own(library):
    """What isn't copied changes with them."""
    library = copy.deepcopy(library)
    encoder = Encoder(library)
    tokens = encoder.tokenize(["abc"])
    before = encoder.embed(tokens)
    for layer in library[0].auto_model.encoder.layer:
        for part in _bert._linear_parts(layer):
            part.weight.data.zero_()
    assert encoder.embed(tokens) != before
    assert encoder.embed(tokens) == Encoder(library).embed(tokens)


@pytest.mark.real_models
def test_the_real_weights_give_what_the_library_gives_in_fp32(monkeypatch, device):
    monkeypatch.delenv("HEADRACE_EMBED_MODEL", raising=False)
    encoder = minilm.load(Device.parse(device))
    texts = [
        "Water.",
        "A river's flow turns the wheel of a mill.",
        "The report says that the council opened the bridge to workers late at night, in the rain. " * 3,
        "Shares fell sharply on the stock exchange. " * 60,
    ]
    theirs = copy.deepcopy(encoder.library).float().encode(texts, normalize_embeddings=True).tolist()
    together = encoder.embed(encoder.tokenize(texts))
    alone = [encoder.embed(encoder.tokenize([text]))[0] for text in texts]
    assert min(similarities(together, theirs)) >= 0.9999
    assert min(similarities(alone, theirs)) >= 0.9999
