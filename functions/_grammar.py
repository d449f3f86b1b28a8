"""Answers that are JSON, by a schema or any: which tokens may follow is known before each is chosen.

The grammars are llguidance's, which finds out what may follow while it is asked, so a schema is ready within
milliseconds. What a schema may cost is bounded, at its start and at each step.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any, Final, cast

from headrace import InvalidInput, TransientError

SCHEMA_BYTES: Final = 16_384
"""The longest schema, as JSON."""

ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}

_COMPILED: Final = 16  # kept; one more after it lets the one go that hasn't been used for longest
_COMPILED_WITHIN_S: Final = 5.0
# The one keyword whose cost llguidance doesn't bound: an automaton of as many states as the number; several
# that have to hold together, as many as their product. At 100,000 it takes most of a second.
_MULTIPLES: Final = 100_000
# Last, so that no schema's own "x-guidance" changes them. Small models write white space without an end where
# it is allowed.
_OPTIONS: Final = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,
    "coerce_one_of": False,
}
# Less than llguidance's own, which allow half a gigabyte and steps of 15 ms in which all others would wait.
_LIMITS: Final = {
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 30_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}


class Grammar:
    """What may follow in one generation.

    Args:
        matcher: of llguidance, at its beginning.
        end: a token that ends an answer.
    """

    def __init__(self, matcher: Any, end: int) -> None:
        self._matcher = matcher
        self._end = end
        self.error: str | None = None
        """Why nothing can follow: the schema is too complex after all. The answer has ended."""

    def restrict(self, scores: Any) -> None:
        """Set the scores of tokens that may not come to minus infinity, in place."""
        import numpy
        import torch

        bits = numpy.frombuffer(self._matcher.compute_bitmask(), dtype=numpy.uint8)
        refused = numpy.unpackbits(bits, count=scores.shape[0], bitorder="little") == 0
        if self._matcher.is_error() or refused.all():
            self.error = self.error or self._matcher.get_error() or "no token can follow"
            refused[:] = True
            refused[self._end] = False
        mask = cast("Any", torch).from_numpy(refused)
        scores.masked_fill_(mask.to(scores.device), float("-inf"))

    def take(self, token: int) -> None:
        """This one comes."""
        if self.error is None:
            self._matcher.consume_token(token)


class Grammars:
    """Those of one model.

    Args:
        tokenizer: of the model.
        vocabulary: how many scores the model gives.
        ends: the tokens that end an answer.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, ends: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._ends = list(ends)
        # One thread: whatever comes as a schema, it takes one core at most.
        self._compiling = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._tokens: Any = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()

    async def of(self, schema: dict[str, Any]) -> Grammar:
        """A grammar at its beginning, for one generation.

        Raises:
            InvalidInput: the schema is too large, or has something that isn't supported; or the option isn't
                there at all.
            TransientError: other schemas have taken all the time.
        """
        if not self._ends:
            raise InvalidInput("this model has no token that ends an answer")
        text = as_json(schema)
        if _multiples(schema) > _MULTIPLES:
            raise InvalidInput(f"the product of all multipleOf is beyond {_MULTIPLES}")
        compiling = self._compiling.submit(self._matcher, text)
        try:
            # Shielded: what has begun can't be stopped, and what hasn't is cancelled below.
            matcher = await asyncio.wait_for(
                asyncio.shield(asyncio.wrap_future(compiling)), _COMPILED_WITHIN_S
            )
        except TimeoutError:
            if compiling.cancel():
                raise TransientError("schemas of others are being read") from None
            raise InvalidInput("the schema takes too long to be read") from None
        except asyncio.CancelledError:
            compiling.cancel()
            raise
        return Grammar(matcher, self._ends[0])

    def close(self) -> None:
        """Let the thread end, when it is done with what it has begun."""
        self._compiling.shutdown(wait=False, cancel_futures=True)

    def _matcher(self, schema: str) -> Any:
        """A new one; in the thread."""
        try:
            import llguidance
            from llguidance import hf
        except ModuleNotFoundError:
            raise InvalidInput("answers in JSON need llguidance, which isn't installed here") from None
        guidance = cast("Any", llguidance)
        if self._tokens is None:
            self._tokens = cast("Any", hf).from_tokenizer(
                self._tokenizer,
                n_vocab=max(self._vocabulary, len(self._tokenizer)),
                eos_token=self._ends,
                slices=guidance.LLTokenizer.json_slices(),
            )
        matcher = self._compiled.pop(schema, None)
        if matcher is None:
            matcher = self._compile(guidance, schema)
        self._compiled[schema] = matcher
        while len(self._compiled) > _COMPILED:
            self._compiled.popitem(last=False)
        return matcher.deep_copy()

    def _compile(self, guidance: Any, schema: str) -> Any:
        try:
            grammar = guidance.LLMatcher.grammar_from_json_schema(schema, overrides=_OPTIONS)
        except ValueError as error:
            raise InvalidInput(f"the schema can't be read: {error}") from None
        limits = guidance.LLParserLimits(**_LIMITS)
        matcher = guidance.LLMatcher(self._tokens, grammar, log_level=0, limits=limits)
        matcher.compute_bitmask()  # some are found out only now
        if matcher.is_error():
            raise InvalidInput(f"the schema isn't supported: {_said(matcher.get_error())}")
        if matcher.is_stopped():
            raise InvalidInput("no JSON fits the schema")
        return matcher


def as_json(schema: dict[str, Any]) -> str:
    """A schema as text, without escapes that only ASCII needs.

    Raises:
        InvalidInput: it is too large.
    """
    text = json.dumps(schema, ensure_ascii=False)
    if (size := len(text.encode())) > SCHEMA_BYTES:
        raise InvalidInput(f"the schema has {size} bytes as JSON; {SCHEMA_BYTES} are allowed")
    return text


def _said(error: str) -> str:
    """What llguidance says, on one line, without its own marks."""
    return " ".join(error.replace("<non-verbose/>", "").split())[:500]


def _multiples(schema: dict[str, Any]) -> float:
    """The product of what all `multipleOf` in a schema have as digits: 25 for 0.25."""
    product = 1.0
    left: list[Any] = [schema]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            values = cast("dict[str, Any]", one)
            left += values.values()
            number = values.get("multipleOf")
            if isinstance(number, int | float) and math.isfinite(number) and number > 0:
                sign_digits = Decimal(repr(number)).normalize()
                product *= float(sign_digits.scaleb(-min(0, cast("int", sign_digits.as_tuple().exponent))))
        elif isinstance(one, list):
            left += cast("list[Any]", one)
    return product
