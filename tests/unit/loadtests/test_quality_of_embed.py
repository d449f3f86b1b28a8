"""The quality of `embed` on the real weights, on the texts that `make bench-quality` measures."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers")

from functions.embed import minilm
from headrace import Device

pytestmark = pytest.mark.real_models

_FILE = Path(__file__).parents[3] / "loadtests" / "quality" / "embed.py"


@pytest.fixture(scope="module")
def quality():
    spec = importlib.util.spec_from_file_location("quality_of_embed", _FILE)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def encoder():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HEADRACE_EMBED_MODEL", raising=False)
        yield minilm.load(Device("cpu"))


def test_vectors_are_close_to_those_of_the_library_in_fp32(quality, encoder):
    """Each of them is, also where products are in bf16."""
    texts = quality.texts()
    assert len(texts) >= 350
    assert len(encoder.read(texts).whole) >= 6
    ours, theirs = quality.vectors(texts, encoder), quality.reference(texts, encoder)
    closeness = {
        text: quality.cosine(left, right) for text, left, right in zip(texts, ours, theirs, strict=True)
    }
    least = 0.9999 if encoder.library.dtype.itemsize == 2 else 0.99999
    assert {text: close for text, close in closeness.items() if close < least} == {}


def test_what_is_alike_in_meaning_is_told_better_than_by_words(quality, encoder):
    pairs = quality.pairs()
    assert (len(pairs), sum(pair.held_out for pair in pairs)) == (40, 20)
    marks = [pair.mark for pair in pairs]
    found = quality.spearman(quality.by_embed(pairs, encoder), marks)
    assert found >= 0.8
    assert found > quality.spearman(quality.by_tf_idf(pairs), marks) + 0.15
    assert found > quality.spearman(quality.by_overlap(pairs), marks) + 0.15


def test_ranks_are_shared_by_equals(quality):
    assert quality.spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert quality.spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert quality.spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(0.8660254)
