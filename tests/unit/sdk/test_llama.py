"""LLaMA's steps as `generate` computes them on a CPU: they give what the library's own network gives."""

# ruff: noqa: PLC0415 - the libraries take seconds to import, and may not be there

from __future__ import annotations

import copy
from typing import NamedTuple

import pytest
from harness import tiny_lm

from functions import _llama
from functions._language_model import room_for
from functions._llama import is_llama, use_ours
from functions._prepacked import product, product_times

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

in_bf16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU computes no bf16 products"
)
DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=in_bf16)]

# In the first step two of these are read, and the longest in more than one; later they attend in groups.
LENGTHS = [3, 60, 300, 145, 9]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The tiny model in fp32, as its library loads it."""
    folder = tiny_lm.build(tmp_path_factory.mktemp("lm"))
    return transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)


def ours_of(network):
    """One that computes here; the given one stays as it is."""
    ours = copy.deepcopy(network)
    use_ours(ours)
    return ours


class Made(NamedTuple):
    """What steps made: the logits of each, and each generation's tokens in the end."""

    logits: list
    tokens: dict[str, list[int]]


def made_by(network, prompts: list[list[int]], count: int) -> Made:
    """The library's steps, without its thread: each prompt comes in a step after the one before it."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    room = room_for(network)
    manager = network.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=room.page_size,
            num_blocks=room.pages,
            max_batch_tokens=room.step_tokens,
            max_requests_per_batch=room.generations,
            auto_switch_to_flash=False,
        ),
    )
    steps = manager._create_batch_processor()
    found = Made([], {})
    seeing = network.register_forward_hook(lambda *given: found.logits.append(given[-1].logits[0].clone()))
    for number, prompt in enumerate(prompts):
        manager.add_request(prompt, request_id=f"g{number}", max_new_tokens=count)
        if number % 2:
            assert steps.prepare_next_batch()
            steps._generation_step(network)
            steps.update_batch()
    while steps.prepare_next_batch():
        steps._generation_step(network)
        steps.update_batch()
    seeing.remove()
    while not manager.output_router.output_queue.empty():
        output = manager.output_router.output_queue.get()
        found.tokens[output.request_id] = output.generated_tokens
    return found


def prompts_of(network, lengths: list[int]) -> list[list[int]]:
    drawn = torch.Generator().manual_seed(11)
    most = network.config.vocab_size
    return [torch.randint(3, most, (length,), generator=drawn).tolist() for length in lengths]


@pytest.mark.parametrize("lengths", [LENGTHS, [1], [300], [20, 21, 22, 23]], ids=str)
def test_steps_give_what_the_library_s_give(plain, lengths):
    prompts = prompts_of(plain, lengths)
    theirs, ours = made_by(plain, prompts, 20), made_by(ours_of(plain), prompts, 20)
    assert ours.tokens == theirs.tokens
    assert len(ours.tokens) == len(lengths)
    for one, other in zip(ours.logits, theirs.logits, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_generations_of_very_different_lengths_attend_in_groups(plain, monkeypatch):
    seen: list[list[int]] = []
    grouped = _llama._side_by_side

    def see(spans):
        found = grouped(spans)
        assert sorted(span for some in found for span in some) == spans
        seen.append(sorted(len(some) for some in found))
        return found

    monkeypatch.setattr(_llama, "_side_by_side", see)
    made_by(ours_of(plain), prompts_of(plain, LENGTHS), 20)
    assert [1, 1] in seen[:2]  # prompts
    assert [1, 1, 3] in seen  # that of 145 has less than half of what that of 300 has
    assert [2, 3] in seen  # and a little later half of it


@in_bf16
def test_laid_out_weights_give_what_plain_ones_give_in_fp32(plain, monkeypatch):
    """No less exactly than the library's in bf16, for as long as both have the same tokens before them."""
    network = copy.deepcopy(plain).bfloat16()
    ours = ours_of(network)
    monkeypatch.delattr("torch.nn.functional.linear")  # what computes with plain ones
    prompts = prompts_of(plain, LENGTHS)
    made = made_by(ours, prompts, 3)
    monkeypatch.undo()
    exact, theirs = made_by(plain, prompts, 3), made_by(network, prompts, 3)
    compared = 0
    for one, other, right in zip(made.logits, theirs.logits, exact.logits, strict=True):
        assert one.dtype == torch.bfloat16
        off, theirs_off = (one.float() - right).abs().max(), (other.float() - right).abs().max()
        assert off <= max(1.5 * theirs_off, 0.1)
        compared += 1
        if len({tuple(some.argmax(-1).tolist()) for some in (one, other, right)}) > 1:
            break
    assert compared > 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weights_are_not_held_twice(plain, dtype):
    network = copy.deepcopy(plain).to(dtype)
    use_ours(network)
    held = sum(weights.numel() for weights in network.parameters())
    assert held == plain.model.embed_tokens.weight.numel() + plain.config.hidden_size
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it is, it is loud
        network.generate(torch.tensor([[5, 6]]), max_new_tokens=2)


def another_class(network) -> None:
    class Other(type(network)):
        pass

    network.__class__ = Other


def training(network) -> None:
    network.train()


def hook(network) -> None:
    network.model.layers[1].register_forward_pre_hook(lambda *_: None)


def another_forward(network) -> None:
    network.model.layers[0].mlp.forward = network.model.layers[1].mlp.forward


def adapter(network) -> None:
    class Adapted(torch.nn.Linear):
        pass

    network.model.layers[0].self_attn.q_proj.__class__ = Adapted


def windows(network) -> None:
    network.config.sliding_window = 16


@pytest.mark.parametrize("change", [another_class, training, hook, another_forward, adapter, windows])
def test_whatever_is_not_exactly_it_stays_the_library_s(plain, change):
    network = copy.deepcopy(plain)
    assert is_llama(network)
    change(network)
    use_ours(network)
    assert not is_llama(network)
    assert len(network.model.layers) == tiny_lm.LAYERS
    assert "forward" not in vars(network)


def layers_of(number: int, dtype, *, biases: tuple[bool, ...]) -> list:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return [torch.nn.Linear(24, 40, bias=biases[at % len(biases)]).to(dtype) for at in range(number)]


def rows_of(width: int, dtype):
    return torch.randn(7, width, generator=torch.Generator().manual_seed(3)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("biases", [(False,), (True,), (True, False)], ids=str)
def test_products_of_layers_without_biases(dtype, biases):
    layers, rows = layers_of(2, dtype, biases=biases), rows_of(24, dtype)
    after = transformers.activations.ACT2FN["silu"]
    with torch.inference_mode():
        ours = product(*layers, after=after)(rows)
        theirs = after(torch.cat([layer.float()(rows.float()) for layer in layers], 1))
    assert ours.dtype == dtype
    assert (ours.float() - theirs).abs().max() <= (1e-6 if dtype == torch.float32 else 0.01)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_product_times_others(dtype):
    (layer,), rows, others = layers_of(1, dtype, biases=(False,)), rows_of(24, dtype), rows_of(40, dtype)
    before = others.clone()
    with torch.inference_mode():
        ours = product_times(layer)(rows, others)
        theirs = layer.float()(rows.float()) * others.float()
    assert (ours.float() - theirs).abs().max() <= (1e-6 if dtype == torch.float32 else 0.02)
    assert torch.equal(others, before)
