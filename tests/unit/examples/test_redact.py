"""What `redact` takes for a card number, an IBAN, an address; and that nothing else is touched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.redact import Kind, Text, luhn, mod_97, redact

# From ISO 13616's registry (the SWIFT's own examples) and from the card brands' lists of test numbers.
IBANS = [
    "DE89370400440532013000",
    "GB29NWBK60161331926819",
    "NO9386011117947",
    "MT84MALT011000012345MTLCAST001S",
    "FR1420041010050500013M02606",
]
CARDS = [
    "4111111111111111",
    "5555555555554444",
    "378282246310005",
    "6011111111111117",
    "4222222222222",
    "6304950600000000007",
]
DIGITS = st.text("0123456789", min_size=12, max_size=18)


def masked(text: str) -> str:
    return redact(Text(text=text)).text


def with_check_digit(digits: str) -> str:
    return next(digits + last for last in "0123456789" if luhn(digits + last))


@pytest.mark.parametrize("iban", IBANS)
def test_known_ibans_are_masked_with_and_without_spaces(iban: str) -> None:
    grouped = " ".join(iban[at : at + 4] for at in range(0, len(iban), 4))
    assert mod_97(iban)
    assert masked(f"to {iban}, {grouped} or {iban.lower()}.") == "to [iban], [iban] or [iban]."


@pytest.mark.parametrize("card", CARDS)
def test_known_card_numbers_are_masked(card: str) -> None:
    assert luhn(card)
    assert masked(f"by {card}.") == "by [card]."
    assert masked(f"{card[:4]}-{card[4:8]}-{card[8:]}") == "[card]"


@given(DIGITS, st.data())
def test_a_check_digit_finds_each_wrong_digit(digits: str, data: st.DataObject) -> None:
    number = with_check_digit(digits)
    at = data.draw(st.integers(0, len(number) - 1))
    wrong = data.draw(st.sampled_from([digit for digit in "0123456789" if digit != number[at]]))
    assert not luhn(number[:at] + wrong + number[at + 1 :])


@given(
    st.sampled_from("3456"),
    DIGITS,
    st.text("0123456789 -.x", max_size=12),
    st.text("0123456789 -.x", max_size=12),
)
def test_a_card_number_is_masked_whatever_stands_beside(
    first: str, digits: str, before: str, after: str
) -> None:
    number = with_check_digit(first + digits[:15])
    start = len(before) + 2
    spans = redact(Text(text=f"{before}. {number} .{after}", kinds=["card"])).spans
    assert any(span.start <= start and start + len(number) <= span.end for span in spans)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("ada@mill.example.", "[email]."),
        ("<a.b+c@x-y.co.uk>", "<[email]>"),
        ("jürgen@mühle.example", "[email]"),
        ("@ada and ada@mill", "@ada and ada@mill"),
        ("call 4111111111111112", "call 4111111111111112"),
        ("X4111111111111111", "X4111111111111111"),
        ("DE88370400440532013000", "DE88370400440532013000"),
        ("on 2026-06-05 for 1234567890123", "on 2026-06-05 for 1234567890123"),
        ("DE89 3704 0044 0532 0130 00 IS MINE", "[iban] IS MINE"),
        ("4111111111111111@mill.example", "[email]"),
    ],
)
def test_what_is_masked_and_what_is_not(text: str, expected: str) -> None:
    assert masked(text) == expected


@pytest.mark.parametrize(
    ("kind", "expected"), [("email", "[email] 4111111111111111"), ("card", "a@b.c [card]")]
)
def test_only_the_kinds_that_are_wanted(kind: Kind, expected: str) -> None:
    assert redact(Text(text="a@b.c 4111111111111111", kinds=[kind])).text == expected


@given(st.text(max_size=200))
def test_what_is_outside_the_spans_stays(text: str) -> None:
    output = redact(Text(text=text))
    end = 0
    expected = ""
    for span in output.spans:
        assert end <= span.start < span.end
        expected += f"{text[end : span.start]}[{span.kind}]"
        end = span.end
    assert output.text == expected + text[end:]


def test_overlapping_finds_are_masked_together() -> None:
    """The digit before it and three of its groups pass the check too: its last group may not be left."""
    assert luhn("5474254734595")
    assert masked("on 5 4742 5473 4595 2761 it is") == "on [card] it is"
