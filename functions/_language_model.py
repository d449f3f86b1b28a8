"""A language model with what it needs to hold a conversation."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, Final

from functions._continuous import ContinuousBatching, Room
from functions._grammar import Grammars
from functions._sampling import Choice
from headrace import InvalidInput

AT_ONCE: Final = 16
"""Generations that one model computes at once; others wait."""

_PAGE_SIZE: Final = 32
# Memory for keys and values. SmolLM2 takes 23 kB a token: 11,000 tokens on a CPU, all it can use on CUDA.
_KEPT_BYTES: Final = {"cpu": 2**28, "cuda": 2**32}
# Tokens that one step reads. A longer prompt is read in several, and others get a token from each of them.
_STEP_TOKENS: Final = {"cpu": 256, "cuda": 2048}


class LanguageModel:
    """A loaded model, its tokenizer, and the generations that run.

    Args:
        network: a causal language model of transformers, on its device.
        tokenizer: of the same.
    """

    def __init__(self, network: Any, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.stops = _stops(network, tokenizer)
        self._markers = _markers(tokenizer)
        room = room_for(network)
        self.context = min(int(network.config.max_position_embeddings), room.tokens)
        """The most tokens of a conversation and its answer."""
        self._batching = ContinuousBatching(network, sorted(self.stops), room)
        self.grammars = Grammars(tokenizer, network.config.get_text_config().vocab_size, sorted(self.stops))

    def read(self, messages: Sequence[dict[str, str]], field: str = "") -> list[int]:
        """The tokens of a conversation, up to where the answer begins.

        What marks its turns comes from the model's template alone: in a message the same characters are text.

        Args:
            messages: `role` and `content` of each turn.
            field: of the input that they come from, as a JSON Pointer, for the error.

        Raises:
            InvalidInput: they are too many, or the model's template refuses them.
        """
        cut = _unused(message["content"] for message in messages)
        harmless = [
            {**message, "content": self._markers.sub(lambda found: found[0] + cut, message["content"])}
            for message in messages
        ]
        if self.tokenizer.chat_template is None:
            if [message["role"] for message in messages] != ["user"]:
                raise InvalidInput(
                    "this model has no template for conversations: it continues one prompt", path=field
                )
            (message,) = harmless
            read = self._tokens(message["content"].split(cut), add_special_tokens=True)
            return self._within_context(read, field)
        try:
            text = self.tokenizer.apply_chat_template(harmless, add_generation_prompt=True, tokenize=False)
        except Exception as error:
            # It is a program that comes with the model, and may want another order of roles.
            raise InvalidInput(f"the model's template refuses these messages: {error}", path=field) from None
        return self._within_context(self._tokens(text.split(cut), add_special_tokens=False), field)

    def generate(
        self, prompt: list[int], max_tokens: int, choice: Choice | None = None
    ) -> AsyncGenerator[Sequence[int]]:
        """As `ContinuousBatching.generate`, and no further than the context."""
        return self._batching.generate(prompt, min(max_tokens, self.context - len(prompt)), choice)

    def warm_up(self) -> None:
        """Make the first step, which takes longer than others, before anybody waits for it."""

        async def first_steps() -> None:
            async for _ in self.generate(self._tokens(["Water"], add_special_tokens=True), 2):
                pass

        asyncio.run(first_steps())

    def close(self) -> None:
        """End the model's thread and let go of its memory: for whoever unloads it."""
        self._batching.close()
        self.grammars.close()

    def _tokens(self, parts: Sequence[str], *, add_special_tokens: bool) -> list[int]:
        """The tokens of a text that was cut where no token may reach across."""
        first, *more = parts
        read = self.tokenizer(first, add_special_tokens=add_special_tokens, verbose=False)["input_ids"]
        if more:
            rest = self.tokenizer(more, add_special_tokens=False, verbose=False)["input_ids"]
            read += itertools.chain.from_iterable(rest)
        return read

    def _within_context(self, tokens: list[int], field: str) -> list[int]:
        if len(tokens) >= self.context:
            raise InvalidInput(
                f"this has {len(tokens)} tokens; the model reads {self.context - 1} at most", path=field
            )
        return tokens


def room_for(network: Any) -> Room:
    """What the generations of a model share: as much as they can use, in bounds that its device sets."""
    config = network.config.get_text_config()
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    token_bytes = (
        2 * config.num_hidden_layers * config.num_key_value_heads * head_size * network.dtype.itemsize
    )
    kind = network.device.type
    tokens = min(AT_ONCE * config.max_position_embeddings, _KEPT_BYTES[kind] // token_bytes)
    return Room(
        pages=max(1, tokens // _PAGE_SIZE),
        page_size=_PAGE_SIZE,
        step_tokens=_STEP_TOKENS[kind],
        generations=AT_ONCE,
    )


def _stops(network: Any, tokenizer: Any) -> frozenset[int]:
    ends = network.generation_config.eos_token_id
    found: list[int | None] = [tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])]
    return frozenset(one for one in found if one is not None)


def _markers(tokenizer: Any) -> re.Pattern[str]:
    """Finds the first character of whatever the tokenizer reads as a mark, such as the end of a turn."""
    marks = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    every = "|".join(re.escape(mark) for mark in marks if len(mark) > 1)
    return re.compile(f"(?=(?:{every})).", re.DOTALL) if every else re.compile(r"(?!)")


def _unused(texts: Iterable[str]) -> str:
    """A character that is in none of the texts: the private ones are more than an input has room for."""
    used = set(itertools.chain.from_iterable(texts))
    return next(chr(code) for code in range(0xF0000, 0x110000) if chr(code) not in used)
