"""Passes without padding, and weights laid out once: they give what the library gives."""

# ruff: noqa: PLC0415 - the libraries take seconds to import, and may not be there

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import pytest
from harness import tiny_encoder

from functions import _bert, _prepacked
from functions._bert import _FP32_TOKENS
from functions._encoder import Encoder
from functions._prepacked import product, product_and_sum
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


def layers_of(number: int, dtype) -> list:
    """So many layers, from 24 numbers to 40."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return [torch.nn.Linear(24, 40).to(dtype) for _ in range(number)]


def rows_of(width: int, dtype):
    return torch.randn(7, width, generator=torch.Generator().manual_seed(3)).to(dtype)


DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=in_bf16)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("after", ["nothing", "gelu", "gelu_new", "relu"])
def test_a_product_is_what_the_layers_make_side_by_side(dtype, number, after):
    from transformers.activations import ACT2FN

    activation = None if after == "nothing" else ACT2FN[after]
    layers, rows = layers_of(number, dtype), rows_of(24, dtype)
    with torch.inference_mode():
        ours = product(*layers, after=activation)(rows)
        theirs = torch.cat([layer.float()(rows.float()) for layer in layers], 1)
        theirs = theirs if activation is None else activation(theirs)
    assert ours.dtype == dtype
    assert (ours.float() - theirs).abs().max() <= (1e-6 if dtype == torch.float32 else 0.01)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sum_is_the_product_and_the_others(dtype):
    (layer,), rows, others = layers_of(1, dtype), rows_of(24, dtype), rows_of(40, dtype)
    before = others.clone()
    with torch.inference_mode():
        ours = product_and_sum(layer)(rows, others)
        theirs = layer.float()(rows.float()) + others.float()
    assert (ours.float() - theirs).abs().max() <= (1e-6 if dtype == torch.float32 else 0.02)
    assert torch.equal(others, before)


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


@pytest.mark.parametrize(
    "lacking", ["_linear_pointwise", "binary", "_reorder_linear_weight", "all of oneDNN"]
)
def test_plain_weights_are_used_where_torch_lacks_the_operators(monkeypatch, lacking):
    (layer,), rows, others = (
        layers_of(1, torch.bfloat16),
        rows_of(24, torch.bfloat16),
        rows_of(40, torch.bfloat16),
    )
    names = {"_linear_pointwise", "_reorder_linear_weight"} - {lacking}
    there = SimpleNamespace(**{name: SimpleNamespace(binary=None) for name in names})
    if lacking == "binary":
        there._linear_pointwise = SimpleNamespace()
    monkeypatch.setattr(torch.ops, "mkldnn", there)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: lacking != "all of oneDNN")
    with torch.inference_mode():
        made = layer(rows)
        assert torch.equal(product(layer)(rows), made)
        assert torch.equal(product_and_sum(layer)(rows, others), made + others)


def takes_nothing(*_):
    raise TypeError("another signature")


def makes_something_else(rows, _, bias, *__):
    return rows.new_zeros(len(rows), len(bias))


def makes_something_longer(rows, _, bias, *__):
    return rows.new_zeros(len(rows), len(bias) + 1)


@in_bf16
@pytest.mark.parametrize("multiply", [takes_nothing, makes_something_else, makes_something_longer])
@pytest.mark.parametrize("when", ["laid out", "multiplied"])
def test_plain_weights_are_used_where_operators_are_not_as_expected(monkeypatch, caplog, multiply, when):
    _prepacked._tell.cache_clear()
    (layer,), rows, others = (
        layers_of(1, torch.bfloat16),
        rows_of(24, torch.bfloat16),
        rows_of(40, torch.bfloat16),
    )

    class Operator:
        def __call__(self, *given):
            return multiply(*given)

        def binary(self, rows, others, *_):
            return multiply(rows, None, others[0])

    there = SimpleNamespace(
        _linear_pointwise=Operator(),
        _reorder_linear_weight=takes_nothing if when == "laid out" else lambda weight, _: weight,
    )
    monkeypatch.setattr(torch.ops, "mkldnn", there)
    with torch.inference_mode():
        made = layer(rows)
        assert torch.equal(product(layer)(rows), made)
        assert torch.equal(product_and_sum(layer)(rows, others), made + others)
    assert "weights stay as they are" in caplog.text


@in_bf16
def test_operators_that_are_as_expected_are_used(caplog):
    _prepacked._tell.cache_clear()
    layers = layers_of(2, torch.bfloat16)
    laid_out, summed = product(*layers), product_and_sum(layers[0])
    for layer in layers:
        layer.weight.data.zero_()
    with torch.inference_mode():
        assert laid_out(rows_of(24, torch.bfloat16)).abs().max() > 1
        assert summed(rows_of(24, torch.bfloat16), rows_of(40, torch.bfloat16).zero_()).abs().max() > 1
    assert not caplog.records


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
