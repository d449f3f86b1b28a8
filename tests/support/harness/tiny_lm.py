"""A language model with random weights, read by the real loader: made in a moment, without any download."""

# ruff: noqa: PLC0415 - the libraries take seconds to import, and few tests need them

from __future__ import annotations

from pathlib import Path

CONTEXT = 512
HIDDEN = 32
LAYERS = 2
HEADS = 4
KEY_HEADS = 2
MERGE = ("t", "h")  # GGUF has to have one
END = "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build(folder: Path, *, template: str | None = TEMPLATE, layers: int = LAYERS) -> Path:
    """Save the model into `folder`: a Llama of few layers whose tokens are bytes."""
    tokenizer = _tokenizer(template)
    network(tokenizer, layers).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def network(tokenizer, layers: int = LAYERS):
    """The model by itself, always with the same weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(7)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=HIDDEN,
                intermediate_size=2 * HIDDEN,
                num_hidden_layers=layers,
                num_attention_heads=HEADS,
                num_key_value_heads=KEY_HEADS,
                max_position_embeddings=CONTEXT,
                tie_word_embeddings=True,
                initializer_range=0.2,  # wide enough for texts that don't repeat themselves
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        ).eval()


def build_gguf(folder: Path) -> Path:
    """Save the same model into `folder` as `tiny.gguf`."""
    import gguf

    folder.mkdir()
    tokenizer = _tokenizer(None)
    weights = network(tokenizer).state_dict()
    writer = gguf.GGUFWriter(str(folder / "tiny.gguf"), "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(2 * HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(tokenizer))
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    special = set(tokenizer.all_special_tokens) | {"<|im_start|>"}
    kinds = [gguf.TokenType.CONTROL if word in special else gguf.TokenType.NORMAL for word in words]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(MERGE)])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    for name, tensor in weights.items():
        if name != "lm_head.weight":  # the same as the embeddings
            values = _interleaved(name, tensor).numpy()
            writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "tiny.gguf"


def _interleaved(name: str, tensor):
    """As the format wants queries and keys: the two halves of each head in turn."""
    heads = {"q_proj": HEADS, "k_proj": KEY_HEADS}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    halves = tensor.reshape(heads, 2, -1, tensor.shape[1])
    return halves.transpose(1, 2).reshape(tensor.shape).contiguous()


def _tokenizer(template: str | None):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<|im_start|>", END]
    words = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), "".join(MERGE)]
    vocabulary = {word: index for index, word in enumerate(words)}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[MERGE]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(special)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token=END, padding_side="left", chat_template=template
    )
