"""A sentence encoder with random weights, read by the real loader: made in a second, without any download."""

# ruff: noqa: PLC0415 - the libraries take seconds to import, and few tests need them

from __future__ import annotations

import string
from pathlib import Path

DIMENSIONS = 32
MAX_TOKENS = 64


def build(folder: Path) -> Path:
    """Save the encoder into `folder`: a BERT of two layers whose tokens are characters."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel

    tokenizer = _tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(7)
        bert = BertModel(
            BertConfig(
                vocab_size=len(tokenizer),
                hidden_size=DIMENSIONS,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=2 * DIMENSIONS,
                max_position_embeddings=MAX_TOKENS,
            )
        )
    bert.eval().save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")
    layers = [Transformer(str(folder / "bert"), max_seq_length=MAX_TOKENS), Pooling(DIMENSIONS), Normalize()]
    SentenceTransformer(modules=layers, device="cpu").save(str(folder / "encoder"))
    return folder / "encoder"


def _tokenizer():
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    characters = string.ascii_lowercase + string.digits + string.punctuation
    words = [*special.values(), *characters, *(f"##{character}" for character in characters)]
    vocabulary = {word: index for index, word in enumerate(words)}
    raw = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer(lowercase=True)
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    raw.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=raw, model_max_length=MAX_TOKENS, **special)
