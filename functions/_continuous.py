"""Many generations by one model at a time: each step computes the next token of all that run.

The scheduling is transformers' continuous batching, which takes and drops generations between two steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import weakref
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from functions._sampling import Choice, Choosing
from headrace import TransientError

_LOOK_AGAIN_S: Final = 0.1  # within this it is seen that the model's thread has ended
_END_S: Final = 30.0  # a step that takes longer is left behind


class Room(NamedTuple):
    """What the generations of a model share.

    Args:
        pages: in which their keys and values are kept; where they are all taken, generations wait.
        page_size: tokens of a page.
        step_tokens: most tokens that one step reads: one of each running generation, the rest of prompts.
        generations: most that run at once.
    """

    pages: int
    page_size: int
    step_tokens: int
    generations: int

    @property
    def tokens(self) -> int:
        """All tokens that are kept at once."""
        return self.pages * self.page_size


class Step(NamedTuple):
    """What one generation got by a step, or by several since it was last asked for."""

    tokens: list[int]
    is_last: bool
    error: str | None = None


class ContinuousBatching:
    """A model whose generations run side by side; its methods may be used from any thread.

    Generations are coroutines, so that a step wakes one thread, and not one for each generation: on the CPU
    all of them would take time from the step after it.

    Its thread ends with `close`, or when the last reference to the object goes.

    Args:
        model: a causal language model of transformers.
        stops: the tokens that end a generation.
        room: what the generations share.
    """

    def __init__(self, model: Any, stops: Sequence[int], room: Room) -> None:
        self._sessions = _Sessions(model, stops, room)
        self._end = weakref.finalize(self, self._sessions.close)

    async def generate(
        self, prompt: list[int], max_tokens: int, choice: Choice | None = None
    ) -> AsyncGenerator[Sequence[int]]:
        """The tokens that follow the prompt, as they come; a stop token is the last one.

        Whoever closes the iterator before its end, or is cancelled in it, ends the generation within a step.

        Args:
            prompt: its tokens, one at least; with `max_tokens` no more than the room has.
            max_tokens: the most that are generated, from 1.
            choice: how each token is chosen; of this generation alone. None: the most likely one.

        Raises:
            TransientError: the model's thread has ended; the next generation gets a new one.
        """
        session = self._sessions.running()
        generation = session.begin(prompt, max_tokens, choice or Choice())
        try:
            while True:
                step = await generation.step()
                if step.error is not None:
                    raise TransientError(step.error)
                if step.tokens:
                    yield step.tokens
                if step.is_last:
                    return
        finally:
            session.drop(generation)

    def close(self) -> None:
        """End the thread, and let go of the model; what still runs fails. Again without harm."""
        self._end()


@dataclass(eq=False)
class _Generation:
    """One that runs or waits.

    Args:
        key: its name in the manager.
        loop: whose thread waits for it.
    """

    key: str
    loop: asyncio.AbstractEventLoop
    received: int = 0
    _found: Step | None = None
    _waiter: asyncio.Future[None] | None = None

    def take(self, step: Step) -> None:
        """Something new; in its loop. Several steps that have gathered are one."""
        if self._found is None:
            self._found = step
        else:
            self._found = Step(self._found.tokens + step.tokens, step.is_last, step.error)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def step(self) -> Step:
        """Wait for what is new."""
        while self._found is None:
            self._waiter = self.loop.create_future()
            await self._waiter
        found, self._found = self._found, None
        return found


_News = list[tuple[_Generation, Step]]


class _Sessions:
    """Starts the model's thread, at first and after it has failed."""

    def __init__(self, model: Any, stops: Sequence[int], room: Room) -> None:
        self._model: Any = model
        self._stops = list(stops)
        self._room = room
        self._changing = threading.Lock()
        self._session: _Session | None = None

    def running(self) -> _Session:
        with self._changing:
            if self._model is None:
                raise TransientError("the model has been unloaded")
            if self._session is None or self._session.has_ended:
                if self._session is not None:
                    self._session.close()
                choosing = Choosing()
                self._session = _Session(self._manager(choosing), choosing)
            return self._session

    def close(self) -> None:
        with self._changing:
            session, self._session = self._session, None
            self._model = None
        if session is not None:
            session.close()

    def _manager(self, choosing: Choosing) -> Any:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        logging.getLogger("ContinuousBatchingLogger").setLevel(
            logging.ERROR
        )  # it may warn of a prompt's tokens
        manager = self._model.init_continuous_batching(
            # -1: none ends it, other than its length.
            generation_config=GenerationConfig(do_sample=False, eos_token_id=self._stops or -1),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=self._room.page_size,
                num_blocks=self._room.pages,
                max_batch_tokens=self._room.step_tokens,
                max_requests_per_batch=self._room.generations,
                auto_switch_to_flash=False,  # it may ask the hub for kernels
                # A token is known before the next step begins, and what chooses it needs to be no graph;
                # both are off by themselves where attention has masks.
                use_cuda_graph=False,
                use_async_batching=False,
            ),
        )
        manager.logit_processor = choosing
        return manager


class _Session:
    """The model's thread from its start to its end, and a thread that hands out what it generates."""

    def __init__(self, manager: Any, choosing: Choosing) -> None:
        self._manager = manager
        self._choosing = choosing
        self._keys = itertools.count(1)
        self._changing = threading.Lock()
        self._generations: dict[str, _Generation] = {}
        self.has_ended = False
        manager.start()
        self._delivery = threading.Thread(target=self._deliver, name="generated tokens", daemon=True)
        self._delivery.start()

    def begin(self, prompt: list[int], max_tokens: int, choice: Choice) -> _Generation:
        generation = _Generation(f"g{next(self._keys)}", asyncio.get_running_loop())
        with self._changing:
            # Before the manager is told, so that nothing is missed; where it ends meanwhile, `_deliver` finds
            # this one among those that it fails.
            if self.has_ended:
                raise TransientError(self._why())
            self._generations[generation.key] = generation
        self._choosing.begin(generation.key, choice)
        try:
            self._manager.add_request(
                prompt, request_id=generation.key, max_new_tokens=max_tokens, streaming=True
            )
        except BaseException:
            with self._changing:
                self._generations.pop(generation.key, None)
            self._choosing.end(generation.key)
            raise
        return generation

    def drop(self, generation: _Generation) -> None:
        """Nobody waits for it any more."""
        with self._changing:
            is_running = self._generations.pop(generation.key, None) is not None
        if is_running:
            self._manager.cancel_request(generation.key)
        self._choosing.end(generation.key)

    def close(self) -> None:
        self._manager.stop(block=True, timeout=_END_S, hard_stop=True)
        self._delivery.join(_END_S)

    def _deliver(self) -> None:
        while True:
            output = self._manager.get_result(timeout=_LOOK_AGAIN_S)
            if output is not None:
                news: _News = []
                while output is not None:  # all that a step has made
                    news += self._news_of(output)
                    output = self._manager.get_result(timeout=0)
                _hand_out(news)
            elif not self._manager.is_running():
                break
        with self._changing:
            self.has_ended = True
            failed = list(self._generations.values())
            self._generations.clear()
        _hand_out([(generation, Step([], is_last=True, error=self._why())) for generation in failed])

    def _news_of(self, output: Any) -> _News:
        is_last = output.is_finished()
        with self._changing:
            generation = self._generations.get(output.request_id)
            if generation is not None and is_last:
                del self._generations[output.request_id]
        if generation is None:
            return []  # dropped
        tokens = output.generated_tokens[generation.received :]
        generation.received += len(tokens)
        return [(generation, Step(tokens, is_last, None if output.error is None else self._why()))]

    def _why(self) -> str:
        error = self._manager.background_thread_status.fatal_error
        return "the generation was broken off" if error is None else f"the model's thread failed: {error}"


def _hand_out(news: _News) -> None:
    """Tell each generation in its loop, and wake each loop once."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, _News] = defaultdict(list)
    for one in news:
        by_loop[one[0].loop].append(one)
    for loop, its in by_loop.items():
        with contextlib.suppress(RuntimeError):  # it is closed: nobody waits there
            loop.call_soon_threadsafe(_take_all, its)


def _take_all(news: _News) -> None:
    for generation, step in news:
        generation.take(step)
