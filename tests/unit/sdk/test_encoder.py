"""Passes without padding, and weights laid out once: they give what the library gives."""

# ruff: noqa: PLC0415 - the libraries take seconds to import, and may not be there

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import pytest
from harness import tiny_encoder

from functions import _prepacked
from functions._encoder import _ATTENTION, _FP32_TOKENS, Encoder
from functions._prepacked import prepack
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


def without_forward(transformer) -> set[str]:
    """The names of its modules whose forward pass is their class' own."""
    return {name for name, module in transformer.named_modules() if "forward" not in vars(module)}


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
    encoder = Encoder(library)
    first = encoder._in_one_row.encoder.layer[0]
    hook = first.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].shape[:2]))
    encoder.embed([[2, 4, 3], [2, 3], [2, 4, 5, 6, 3]])
    hook.remove()
    assert rows == [(1, 10)]


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=in_bf16)], ids=str)
def test_the_library_s_own_encoder_is_not_changed(library, dtype):
    library = copy.deepcopy(library).to(dtype)
    texts = ["abc", "a longer text with words"]
    transformer = library[0].auto_model
    attention, vectors = transformer.config._attn_implementation, library.encode(texts)
    weights = {name: tensor.clone() for name, tensor in library.state_dict().items()}
    encoder = Encoder(library)
    encoder.embed(encoder.tokenize(texts))
    assert transformer.config._attn_implementation == attention != _ATTENTION
    assert encoder._in_one_row.config._attn_implementation == _ATTENTION
    assert without_forward(transformer) == {name for name, _ in transformer.named_modules()}
    assert (library.encode(texts) == vectors).all()
    assert library.state_dict().keys() == weights.keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in library.state_dict().items())


def test_weights_are_shared_with_the_library(library, unpadded):
    theirs = {tensor.data_ptr() for tensor in library[0].auto_model.parameters()}
    assert {tensor.data_ptr() for tensor in unpadded._in_one_row.parameters()} == theirs


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

        def __getitem__(self, index):
            return library[index]

    assert Encoder(Elsewhere())._in_one_row is None  # type: ignore[arg-type]


def bert_in(library, dtype):
    return copy.deepcopy(library[0].auto_model).to(dtype)


@in_bf16
def test_weights_laid_out_once_give_what_plain_ones_give(library, monkeypatch):
    library = copy.deepcopy(library).bfloat16()
    with monkeypatch.context() as patch:
        patch.setattr("functions._encoder.prepack", lambda _: None)
        plain = Encoder(library)
    laid_out = Encoder(library)
    assert without_forward(plain._in_one_row) > without_forward(laid_out._in_one_row)
    texts = ["a" * length + "bcd" for length in LENGTHS]
    for some in (texts, texts[:1], texts * 10):
        tokens = plain.tokenize(some)
        assert min(similarities(plain.embed(tokens), laid_out.embed(tokens))) >= 0.9999


@in_bf16
def test_every_linear_layer_is_laid_out_and_no_weight_twice(library, monkeypatch):
    laid_out = []
    product = _prepacked._product

    def noted(layer, *options):
        laid_out.append(layer)
        return product(layer, *options)

    monkeypatch.setattr(_prepacked, "_product", noted)
    bert = bert_in(library, torch.bfloat16)
    prepack(bert)
    layers = [module for module in bert.modules() if isinstance(module, torch.nn.Linear)]
    assert sorted(map(id, laid_out)) == sorted(map(id, layers))


@in_bf16
def test_another_activation_than_the_exact_gelu_stays_as_it_is(library):
    bert = bert_in(library, torch.bfloat16)
    for layer in bert.encoder.layer:
        layer.intermediate.intermediate_act_fn = torch.nn.ReLU()
    own = copy.deepcopy(bert)
    prepack(bert)
    assert "encoder.layer.0.intermediate" in without_forward(bert)
    assert "encoder.layer.0.intermediate.dense" not in without_forward(bert)
    rows = torch.randn(7, tiny_encoder.DIMENSIONS, generator=torch.Generator().manual_seed(3)).bfloat16()
    with torch.inference_mode():
        ours, theirs = (one.encoder.layer[0].intermediate(rows) for one in (bert, own))
    assert torch.allclose(ours, theirs, atol=0.02)


def test_nothing_changes_in_fp32(library):
    bert = bert_in(library, torch.float32)
    every = without_forward(bert)
    prepack(bert)
    assert without_forward(bert) == every


@pytest.mark.parametrize("lacking", ["_linear_pointwise", "_reorder_linear_weight", "all of oneDNN"])
def test_nothing_changes_where_torch_lacks_the_operators(library, monkeypatch, lacking):
    bert = bert_in(library, torch.bfloat16)
    every = without_forward(bert)
    names = {"_linear_pointwise", "_reorder_linear_weight"} - {lacking}
    there = SimpleNamespace(**{name: getattr(torch.ops.mkldnn, name) for name in names})
    monkeypatch.setattr(torch.ops, "mkldnn", there)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: lacking != "all of oneDNN")
    prepack(bert)
    assert without_forward(bert) == every


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
