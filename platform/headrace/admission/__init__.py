"""Whether a call is taken, by whom, and how long its connection may be held. No I/O, no clock.

`decide` is the rule, over what `predict` makes of the runners' reports; docs/admission.md has both in words,
and the table of cases that is its test.
"""

from headrace.admission.choosing import RunnerLoad, choose, finish_s, most_room
from headrace.admission.deciding import (
    Decision,
    Job,
    Refused,
    Snapshot,
    Sync,
    Wish,
    decide,
    ends_within,
    may_start_soon,
)
from headrace.admission.prediction import Candidate, Predicted, predict
from headrace.admission.returning import back_s, mended_s
from headrace.admission.spans import Span, retry_after, span

__all__ = [
    "Candidate",
    "Decision",
    "Job",
    "Predicted",
    "Refused",
    "RunnerLoad",
    "Snapshot",
    "Span",
    "Sync",
    "Wish",
    "back_s",
    "choose",
    "decide",
    "ends_within",
    "finish_s",
    "may_start_soon",
    "mended_s",
    "most_room",
    "predict",
    "retry_after",
    "span",
]
