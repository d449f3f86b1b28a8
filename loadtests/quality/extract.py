"""Quality of `extract`: F1 on our own labelled sentences, beside runs of capitalised words.

They are in tests/quality/entities.json; those in entities_fresh.json were written and committed after the
function was finished, and are measured once.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from functions.extract import Texts, extract, recogniser
from headrace.sdk import Call, Device

_DATA: Final = Path(__file__).parents[2] / "tests" / "quality"
_LABELS: Final = ["PERSON", "ORG", "GPE", "LOC", "NORP", "DATE", "MONEY"]
"""What the sentences are marked with."""

_CAPITALISED: Final = re.compile(r"\b[A-Z]\w*(?:[ -][A-Z]\w*)*")


class Span(NamedTuple):
    """A part of a sentence, and what it is."""

    start: int
    end: int
    label: str


@dataclass(frozen=True)
class Sentence:
    """A sentence, and what is marked in it."""

    text: str
    held_out: bool
    marked: frozenset[Span]


def measure() -> list[str]:
    """Lines of Markdown: a table with precision, recall and F1 of both, by label and in all."""
    first = _sentences("entities.json")
    sentences = [*first, *_sentences("entities_fresh.json")]
    found = _extracted(sentences)
    baseline = [_capitalised(one.text) for one in sentences]
    held = [at for at, one in enumerate(first) if one.held_out]
    every = list(range(len(first)))
    fresh = list(range(len(first), len(sentences)))
    marks, fresh_marks = (sum(len(sentences[at].marked) for at in which) for which in (every, fresh))
    lines = [
        f"spaCy's small English model on {len(every)} sentences with {marks} marks of 7 kinds, and on",
        f"{len(fresh)} fresh ones with {fresh_marks}, beside the simplest method: each run of capitalised",
        "words is an entity, and a person. *Span*: where it is counts, not its label. The model leaves a",
        "currency's sign out at times, as in `18.99` for `$18.99`, which counts as wrong.",
        "",
        "| of | sentences | F1 | precision | recall | F1, span only |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, which in (("all", every), ("held out", held), ("fresh", fresh)):
        lines += [
            f"| `extract` | {name} | {_row(sentences, found, which)} |",
            f"| capitalised words | {name} | {_row(sentences, baseline, which)} |",
        ]
    lines += ["", "By label:", "", "| label | of | marked | F1 | precision | recall |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for label in _LABELS:
        for name, which in (("all", every), ("fresh", fresh)):
            scores = _score(
                sentences, found, which, lambda span, only=label: span if span.label == only else None
            )
            marked = sum(span.label == label for at in which for span in sentences[at].marked)
            lines.append(f"| {label} | {name} | {marked} | {scores} |")
    return lines


def _sentences(file: str) -> list[Sentence]:
    read = cast(list[dict[str, Any]], json.loads((_DATA / file).read_text()))
    return [
        Sentence(
            text=one["text"],
            held_out=one["held_out"],
            marked=frozenset(Span(mark["start"], mark["end"], mark["label"]) for mark in one["entities"]),
        )
        for one in read
    ]


def _extracted(sentences: list[Sentence]) -> list[set[Span]]:
    end = time.monotonic() + 600
    call = Call(job_id="quality", attempt=1, soft_at=end, deadline_at=end)
    asked = Texts.model_validate({"texts": [one.text for one in sentences], "labels": _LABELS})
    [answer] = extract.fn([asked], calls=[call], nlp=recogniser.load(Device()))
    return [{Span(one.start, one.end, one.label) for one in found} for found in answer.entities]


def _capitalised(text: str) -> set[Span]:
    """Runs of capitalised words; a single one at the beginning of the sentence says nothing."""
    found = [match.span() for match in _CAPITALISED.finditer(text)]
    return {Span(start, end, "PERSON") for start, end in found if start or " " in text[start:end]}


def _row(sentences: list[Sentence], found: list[set[Span]], which: list[int]) -> str:
    whole = _score(sentences, found, which, lambda span: span)
    spans = _score(sentences, found, which, lambda span: span._replace(label=""))
    return f"{whole} | {spans.split(' | ')[0]}"


def _score(
    sentences: list[Sentence],
    found: list[set[Span]],
    which: list[int],
    counted: Callable[[Span], Span | None],
) -> str:
    """F1, precision and recall over all spans of these sentences, as cells of a table."""
    marked = {(at, kept) for at in which for span in sentences[at].marked if (kept := counted(span))}
    ours = {(at, kept) for at in which for span in found[at] if (kept := counted(span))}
    right = len(marked & ours)
    precision, recall = right / max(1, len(ours)), right / max(1, len(marked))
    f1 = 2 * precision * recall / max(1e-9, precision + recall)
    return f"{f1:.2f} | {precision:.2f} | {recall:.2f}"
