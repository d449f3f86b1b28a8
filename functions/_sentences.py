"""Sentences of a text, in many languages, by their places.

Boundaries are found by sentencex (Wikimedia, MIT): rules for some 300 languages, in time that grows with the
length of the text. Where trials showed that it ends a sentence too early, `_GOES_ON` joins the parts again.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, cast

LONGEST: Final = 600
"""Characters of a sentence; a longer one is cut, at the end of a clause or between words where it has any."""

_SAMPLE: Final = 4000
# Characters that sentencex gets at once: of quotation marks its time grows with the square of their number.
_BLOCK: Final = 10_000


class Span(NamedTuple):
    """A sentence's place: `text[start:end]`, without white space around it."""

    start: int
    end: int


def sentences(text: str, language: str) -> list[Span]:
    """The sentences that have anything to see in them, in their order.

    A blank line ends a sentence, and so does a line break before a bullet or a number; any other doesn't.

    Args:
        text: whatever it holds.
        language: its ISO 639 code, as `de` or `pt-BR`; of one without rules those of English are taken.
    """
    joined = _joined(text, _items(text, _found(text, language)), primary(language))
    return [part for span in joined for part in _cut(text, span) if _is_visible(text, part)]


def has_something_to_read(text: str) -> bool:
    """Whether there is more in it than white space and control characters."""
    return _is_visible(text, Span(0, len(text)))


def primary(language: str) -> str:
    """`pt` of `pt-BR`."""
    return language.partition("-")[0].lower()


def separator(language: str) -> str:
    """What stands between two sentences: nothing in Chinese and Japanese."""
    return "" if primary(language) in {"zh", "yue", "ja"} else " "


def _found(text: str, language: str) -> Iterator[Span]:
    import sentencex  # pyright: ignore[reportMissingTypeStubs]

    start = 0
    while start < len(text):
        block = text[start : start + _BLOCK]
        found = cast("Any", sentencex).get_sentence_boundaries(primary(language), block)
        ends: list[int] = [one["end_index"] for one in found]
        # The last one may go on in the next block, which begins with it.
        is_last = start + _BLOCK >= len(text)
        ends = [*ends[:-1], len(block)] if is_last else ends[:-1] or [len(block)]
        for begin, end in itertools.pairwise([0, *ends]):
            yield Span(start + begin, start + end)
        start += ends[-1]


# A list's item begins on a line of its own, and seldom ends with a stop.
_ITEM: Final = re.compile(r"\n(?=[^\S\n]*(?:[-*\u2022\u2013#]+|\d{1,3}[.)])[^\S\n])")


def _items(text: str, spans: Iterable[Span]) -> Iterator[Span]:
    for span in spans:
        start = span.start
        for item in _ITEM.finditer(text, span.start, span.end):
            yield Span(start, item.start())
            start = item.end()
        yield Span(start, span.end)


_ORDINAL: Final = r"(?:^|[\s(])\d{1,2}\."
_LETTER: Final = r"(?:^|[\s(.])\w\."
# Ends of what isn't a sentence's end: ordinal numbers, titles, initials.
_GOES_ON: Final = {
    **dict.fromkeys(("da", "de", "et", "fi", "hr", "hu", "nb", "no", "sk", "sl", "tr"), _ORDINAL),
    **dict.fromkeys(("cs", "pl"), rf"{_ORDINAL}|{_LETTER}"),
    **dict.fromkeys(("ar", "bg", "fa", "ru", "sr", "uk", "ur"), _LETTER),
    "fr": r"(?:^|[\s(«])(?:M|MM|Mme|Mmes|Mlle|Me|Dr|Pr|St|Ste|cf|Cf)\.",
    "hi": r"(?:^|\s)(?:डॉ|श्री|प्रो)\.",
    "ja": r"[」』\uff09]",
}
_ENDS: Final = {language: re.compile(rf"(?:{pattern})$") for language, pattern in _GOES_ON.items()}
# In Japanese a quotation is followed by what says that it is one.
_BEGINS: Final = {"ja": re.compile(r"と|って|など|[、。でにをがはもの]")}
_TAIL: Final = 8


def _joined(text: str, spans: Iterable[Span], language: str) -> Iterator[Span]:
    """Them without white space around, and put together where one goes on in the next."""
    ends, begins = _ENDS.get(language), _BEGINS.get(language)
    last: Span | None = None
    for span in filter(None, (_stripped(text, span) for span in spans)):
        if last is None:
            last = span
        elif (
            ends is not None
            and ends.search(text[max(last.start, last.end - _TAIL) : last.end])
            and text.count("\n", last.end, span.start) < 2  # no blank line
            and (begins is None or begins.match(text, span.start))
        ):
            last = Span(last.start, span.end)
        else:
            yield last
            last = span
    if last is not None:
        yield last


def _stripped(text: str, span: Span) -> Span | None:
    start, end = span
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return Span(start, end) if start < end else None


_CLAUSE: Final = re.compile(r"[,;:](?=\s)|[\uff0c\uff1b\uff1a\u3001\u060c\u061b\u2014]|\s[\u2013-](?=\s)")
_SPACE: Final = re.compile(r"\s+")


def _cut(text: str, span: Span) -> Iterator[Span]:
    start, end = span
    while end - start > LONGEST:
        at = _cut_at(text, start)
        if part := _stripped(text, Span(start, at)):
            yield part
        start = at
    if part := _stripped(text, Span(start, end)):
        yield part


def _cut_at(text: str, start: int) -> int:
    """Where a sentence that is too long is cut: in the second half of what is allowed."""
    earliest, latest = start + LONGEST // 2, start + LONGEST
    for pattern in (_CLAUSE, _SPACE):
        ends = [found.end() for found in pattern.finditer(text, earliest, latest)]
        if ends:
            return ends[-1]
    at = latest
    while at > earliest and _belongs_to_the_one_before(text[at]):
        at -= 1
    return at if at > earliest else latest


def _belongs_to_the_one_before(character: str) -> bool:
    return character == "\u200d" or unicodedata.category(character) in {"Mn", "Mc", "Me", "Cf", "Sk"}


def _is_visible(text: str, span: Span) -> bool:
    return any(text[at].isprintable() and not text[at].isspace() for at in range(*span))


# The first word of the name of a letter, in Unicode, is its script.
_LANGUAGE_OF_SCRIPT: Final = {
    "ARABIC": "ar",
    "ARMENIAN": "hy",
    "BENGALI": "bn",
    "CJK": "zh",
    "CYRILLIC": "ru",
    "DEVANAGARI": "hi",
    "ETHIOPIC": "am",
    "GEORGIAN": "ka",
    "GREEK": "el",
    "GUJARATI": "gu",
    "GURMUKHI": "pa",
    "HANGUL": "ko",
    "HEBREW": "he",
    "HIRAGANA": "ja",
    "KANNADA": "kn",
    "KATAKANA": "ja",
    "KHMER": "km",
    "MALAYALAM": "ml",
    "MYANMAR": "my",
    "TAMIL": "ta",
    "TELUGU": "te",
    "THAI": "th",
}
# Small words that are common in one of these languages and rare in the others.
_SMALL_WORDS: Final = {
    "de": "der die das und ist nicht ein eine dem mit zu sich auf für im auch wird",
    "en": "the and of to is that in it was for with as on are this by",
    "es": "el los las y es que del una por con para su como pero más",
    "fr": "le les et est des une du dans qui au pour pas sur ce il",
    "it": "il gli e è di che della un per non con sono del anche nel",
    "nl": "de het en een van is dat niet op te met voor zijn aan ook",
    "pt": "o os e é que da do uma não para com em dos mais ao",
}


def language_of(text: str) -> str:
    """The language's ISO 639 code, guessed by script, of Latin ones by small words; else `en`."""
    middle = len(text) // 2
    sample = text if len(text) <= 2 * _SAMPLE else text[:_SAMPLE] + text[middle : middle + _SAMPLE]
    scripts = Counter(unicodedata.name(letter, "").partition(" ")[0] for letter in sample if letter.isalpha())
    if 10 * (scripts["HIRAGANA"] + scripts["KATAKANA"]) > scripts["CJK"] > 0:
        return "ja"
    known = [
        script for script, _ in scripts.most_common() if script in _LANGUAGE_OF_SCRIPT or script == "LATIN"
    ]
    if known and known[0] != "LATIN":
        return _LANGUAGE_OF_SCRIPT[known[0]]
    words = Counter(re.findall(r"\w+", sample.lower()))
    found = {code: sum(words[word] for word in small.split()) for code, small in _SMALL_WORDS.items()}
    best = max(found, key=lambda code: found[code])
    return best if found[best] > found["en"] else "en"
