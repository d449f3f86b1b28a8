"""Parts of a pass, each computed by one thread: they are all of it, and the threads stay usable, and end."""

# ruff: noqa: PLC0415 - the libraries take seconds to import, and may not be there

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest
from harness import tiny_encoder
from hypothesis import given
from hypothesis import strategies as st

from functions._abreast import _TOKENS, Abreast
from functions._encoder import Encoder
from headrace.errors import CallStopped

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

WAIT = 60


@pytest.fixture(scope="module", autouse=True)
def two_threads() -> Iterator[None]:
    """Torch may use two threads, whatever the machine has and other tests were told."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def abreast(two_threads) -> Abreast:
    return Abreast()


def of_threads(number: int) -> Abreast:
    """One without threads, which has so many in mind: for `parts` only."""
    made = object.__new__(Abreast)
    made.number = number
    return made


def in_a_thread(work: Any) -> list[Any]:
    """What it returns, run in a thread that began just now; nothing where it never ends."""
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(work()), daemon=True)
    thread.start()
    thread.join(WAIT)
    return made


@given(st.lists(st.integers(1, 512), max_size=60), st.integers(1, 9))
def test_parts_have_each_text_once_and_are_balanced_within_the_longest(lengths, number):
    parts = of_threads(number).parts(lengths)
    assert sorted(index for part in parts for index in part) == list(range(len(lengths)))
    assert len(parts) <= number
    sums = [sum(lengths[index] for index in part) for part in parts]
    assert max(sums) - min(sums) <= max(lengths, default=0)
    assert len(parts) == 1 or all(parts)


@pytest.mark.parametrize(
    ("number", "lengths", "parts"),
    [
        (1, [_TOKENS] * 8, 1),
        (2, [_TOKENS] * 8, 2),
        (2, [8 * _TOKENS], 1),
        (2, [_TOKENS - 1, _TOKENS], 1),
        (2, [_TOKENS, _TOKENS], 2),
        (8, [_TOKENS] * 3, 3),
        (2, [], 1),
    ],
)
def test_there_is_one_part_where_more_would_gain_nothing(number, lengths, parts):
    assert len(of_threads(number).parts(lengths)) == parts


def test_each_part_is_computed_by_one_thread_and_the_caller_keeps_its_number(abreast):
    both = threading.Barrier(2, timeout=WAIT)

    def look(part: str) -> tuple[str, str, int]:
        both.wait()  # so no thread does the work of another
        return part, threading.current_thread().name, torch.get_num_threads()

    for _ in range(3):
        parts, names, numbers = zip(*abreast.map(look, ["a", "b"]), strict=True)
        assert parts == ("a", "b")
        assert len(set(names)) == 2
        assert numbers == (1, 1)
    assert torch.get_num_threads() == 2


def test_threads_that_begin_later_may_use_as_many_as_before():
    """Setting it in a thread sets it for all that come later, so all threads have to be there at once."""
    made = Abreast()
    assert in_a_thread(torch.get_num_threads) == [2]
    made.map(lambda part: part, [0, 1])
    assert in_a_thread(torch.get_num_threads) == [2]


def test_with_one_thread_there_is_no_other():
    torch.set_num_threads(1)
    try:
        before = threading.active_count()
        alone = Abreast()
        assert threading.active_count() == before
        assert alone.map(lambda _: threading.get_ident(), [0, 0]) == [threading.get_ident()] * 2
    finally:
        torch.set_num_threads(2)


def test_what_a_part_raises_is_raised_once_all_have_ended(abreast):
    ended = []

    def compute(part: int) -> int:
        if part == 1:
            raise MemoryError("of part 1")
        ended.append(part)
        return part

    with pytest.raises(MemoryError, match="of part 1"):
        abreast.map(compute, [0, 1, 2, 3])
    assert sorted(ended) == [0, 2, 3]
    assert abreast.map(lambda part: -part, [1, 2]) == [-1, -2]


def test_an_interrupt_at_any_step_leaves_the_threads_usable(abreast):
    """As an executor raises `CallStopped` in the thread that waits, between any two steps of its own."""

    def interrupted(step: int) -> bool:
        """Whether there was such a step."""
        left = step

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal left
            frame.f_trace_opcodes = True
            if event == "opcode":
                left -= 1
                if left < 0:
                    sys.settrace(None)
                    raise CallStopped("the call was cancelled")
            return trace

        gc.disable()  # others' callbacks would be interrupted with it
        sys.settrace(trace)
        try:
            abreast.map(abs, [-1, -2])
        except CallStopped:
            return True
        finally:
            sys.settrace(None)
            gc.enable()
        return False

    step = 0
    while in_a_thread(lambda at=step: interrupted(at)) == [True]:
        assert in_a_thread(lambda: abreast.map(abs, [-3, -4])) == [[3, 4]], f"after step {step}"
        step += 1
    assert step > 50


def test_its_threads_end_when_it_is_no_longer_used():
    before = set(threading.enumerate())
    made = Abreast()
    threads = set(threading.enumerate()) - before
    assert len(threads) == 2
    compute = partial(lambda pool, part: part, made)  # which holds it, as an encoder's passes do
    assert made.map(compute, [0, 1]) == [0, 1]
    del made, compute
    gc.collect()
    for thread in threads:
        thread.join(WAIT)
    assert not any(thread.is_alive() for thread in threads)


def test_a_process_ends_with_its_threads_at_work():
    code = (
        "import threading, torch\n"
        "torch.set_num_threads(2)\n"
        "from functions._abreast import Abreast\n"
        "made = Abreast()\n"
        "begun = threading.Event()\n"
        "def compute(part):\n"
        "    begun.set()\n"
        "    weights = torch.ones(300, 300)\n"
        "    for _ in range(50): weights = weights @ weights / 300\n"
        "    print('done', flush=True)\n"
        "threading.Thread(target=made.map, args=(compute, [0, 1]), daemon=True).start()\n"
        "begun.wait()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=WAIT
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "done" in ended.stdout


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, two_threads) -> Encoder:
    from sentence_transformers import SentenceTransformer

    library = SentenceTransformer(str(tiny_encoder.build(tmp_path_factory.mktemp("models"))), device="cpu")
    return Encoder(library)


def some_tokens(encoder: Encoder) -> list[list[int]]:
    return encoder.tokenize(["a" * length for length in (40, 1, 17, 60, 3, 3, 28, 55, 9)])


def test_the_vectors_of_the_parts_are_those_of_the_whole_pass(encoder, monkeypatch):
    tokens = some_tokens(encoder)
    passes: list[int] = []
    unpadded = Encoder._unpadded
    monkeypatch.setattr(
        Encoder, "_unpadded", lambda self, tokens: passes.append(len(tokens)) or unpadded(self, tokens)
    )
    with torch.inference_mode():
        whole = torch.nn.functional.normalize(unpadded(encoder, tokens), dim=1)
    found = encoder.vectors(tokens)
    assert len(passes) == 2
    assert sum(passes) == len(tokens)
    assert (found - whole).abs().max() <= 1e-6


def test_vectors_need_no_gradients_whatever_the_caller_s_mode(encoder):
    tokens = some_tokens(encoder)
    outside = encoder.vectors(tokens)
    with torch.inference_mode():
        inside = encoder.vectors(tokens)
    (elsewhere,) = in_a_thread(lambda: encoder.vectors(tokens))
    assert not outside.requires_grad
    assert torch.equal(outside, inside)
    assert torch.equal(outside, elsewhere)


def test_calls_from_several_threads_get_their_own(encoder):
    """As those of `embed` and of `summarize`, which computes in a thread of its own."""
    tokens = some_tokens(encoder)
    reversed_tokens = tokens[::-1]
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.extend(encoder.vectors(tokens) for _ in range(20)), daemon=True
    )
    thread.start()
    others = [encoder.vectors(reversed_tokens) for _ in range(20)]
    thread.join(WAIT)
    assert len(found) == 20
    for one, other in zip(found, others, strict=True):
        assert (one - other.flip(0)).abs().max() <= 1e-6
