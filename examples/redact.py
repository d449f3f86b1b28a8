r"""Masks what identifies somebody: e-mail addresses, card numbers, IBANs. No model: a function is any Python.

    HEADRACE_FUNCTIONS=examples.redact make up

    curl -s http://127.0.0.1:8000/fn/redact \
      -H "Authorization: Bearer $(cat .headrace/key)" \
      -H 'Content-Type: application/json' \
      -d '{"text": "Ada (ada@mill.example) paid with 4111 1111 1111 1111 for DE89 3704 0044 0532 0130 00."}'

Numbers count by their check digits: true ones are masked, and of others that look alike about one in 97 as an
IBAN and one in 10 as a card. It knows nothing of people's names: that is work for `extract`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import BaseModel, Field

from headrace import Budget, Cost, Limits, function

Kind = Literal["email", "card", "iban"]


class Text(BaseModel):
    """A text to mask."""

    text: Annotated[str, Field(max_length=200_000)]
    kinds: Annotated[list[Kind], Field(min_length=1, max_length=3)] = ["email", "card", "iban"]


class Span(BaseModel):
    """A part that was masked."""

    kind: Kind
    start: int = Field(description="Where it begins in the text that was sent, in characters from 0.")
    end: int = Field(description="Where it ends: the position after its last character.")


class Redacted(BaseModel):
    """The text with `[email]`, `[card]` or `[iban]` in place of each, and where they were."""

    text: str
    spans: list[Span]


def luhn(digits: str) -> bool:
    """Whether a card number's check digit is right: ISO/IEC 7812-1, annex B."""
    doubled = [int(digit) * (1 + at % 2) for at, digit in enumerate(reversed(digits))]
    return sum(value - 9 if value > 9 else value for value in doubled) % 10 == 0


def mod_97(iban: str) -> bool:
    """Whether an IBAN's check digits are right: ISO 13616, the remainder of ISO 7064's MOD 97-10."""
    return int("".join(str(int(char, 36)) for char in iban[4:] + iban[:4])) % 97 == 1


class Form(NamedTuple):
    """How a number is written: at each of its possible starts, the longest text whose check is right."""

    start: re.Pattern[str]
    longest_first: list[re.Pattern[str]]
    is_valid: Callable[[str], bool]


def _lengths(first: str, then: str, longest: int, shortest: int) -> list[re.Pattern[str]]:
    """Patterns for so many characters after the first ones, with single spaces or hyphens between them."""
    counts = range(longest, shortest - 1, -1)
    return [re.compile(rf"{first}(?:[ -]?{then}){{{count}}}(?![A-Za-z0-9])") for count in counts]


EMAIL: Final = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
NUMBERS: Final[dict[Kind, Form]] = {
    "iban": Form(
        re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}[0-9]{2}"),
        _lengths("[A-Za-z]{2}[0-9]{2}", "[A-Za-z0-9]", 30, 11),
        mod_97,
    ),
    "card": Form(re.compile(r"(?<![A-Za-z0-9])[2-6]"), _lengths("[2-6]", "[0-9]", 18, 12), luhn),
}


@function(
    budget=Budget(sync=5, queue=30, soft=8, hard=10),
    limits=Limits(input="1MiB", output="16MiB"),
    cost=Cost.chars("text"),
    examples=[{"text": "Write to ada@mill.example."}],
)
def redact(input: Text) -> Redacted:
    """A text without its e-mail addresses, card numbers and IBANs."""
    spans: list[Span] = []
    for span in sorted(_found(input.text, input.kinds), key=lambda one: one.start):
        if spans and span.start < spans[-1].end:
            spans[-1].end = max(span.end, spans[-1].end)  # they overlap: nothing of either may be left
        else:
            spans.append(span)
    parts: list[str] = []
    end = 0
    for span in spans:
        parts += [input.text[end : span.start], f"[{span.kind}]"]
        end = span.end
    return Redacted(text="".join([*parts, input.text[end:]]), spans=spans)


def _found(text: str, kinds: list[Kind]) -> Iterator[Span]:
    if "email" in kinds:
        yield from (Span(kind="email", start=at.start(), end=at.end()) for at in EMAIL.finditer(text))
    for kind, form in NUMBERS.items():
        for start in form.start.finditer(text) if kind in kinds else ():
            matches = (pattern.match(text, start.start()) for pattern in form.longest_first)
            for match in filter(None, matches):
                if form.is_valid(re.sub("[ -]", "", match[0])):
                    yield Span(kind=kind, start=match.start(), end=match.end())
                    break
