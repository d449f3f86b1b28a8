"""How runners stand, in the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final, get_args

from headrace.capacity import Warmth

Json = dict[str, Any]

_SECONDS: Final[Json] = {"type": "number", "minimum": 0}

CAPACITY: Final[Json] = {
    "type": ["object", "null"],
    "description": "What the runner said within the last second; null: nothing yet. Functions that share "
    "slots tell the same of them. Times are seconds, 0 where nothing is known.",
    "properties": {
        "slots": {"type": "integer", "description": "How many of its calls may run at once."},
        "free": {"type": "integer", "description": "How many more could start now."},
        "busy": {"type": "integer", "description": "What runs in its slots."},
        "waiting": {"type": "integer", "description": "Its calls that wait for a slot."},
        "waiting_cost": {"type": "number", "description": "Their cost together."},
        "mean_s": {**_SECONDS, "description": "How long an execution takes on average."},
        "p95_s": {**_SECONDS, "description": "What 95 of 100 don't exceed."},
        "p50_s": {**_SECONDS, "description": "What half of the last hundred don't exceed."},
        "known": {"type": "integer", "description": "Of how many of the last executions that is."},
        "cost_s": {**_SECONDS, "description": "How long a cost of 1 takes; 0 where inputs have no cost."},
        "by_cost": {
            "type": "array",
            "description": "The same by the input's cost: the power of two that it doesn't exceed.",
            "items": {
                "type": "object",
                "required": ["cost", "mean_s", "p95_s"],
                "properties": {
                    "cost": {"type": "integer"},
                    "mean_s": _SECONDS,
                    "p95_s": _SECONDS,
                    "known": {"type": "integer"},
                },
            },
        },
        "warmth": {
            "type": "string",
            "enum": list(get_args(Warmth)),
            "description": "Whether its models are loaded; none: its process starts.",
        },
        "load_s": {**_SECONDS, "description": "How long loading what is missing should take."},
        "memory": {"type": "integer", "description": "Bytes that its models take."},
    },
}

PREDICTED: Final[Json] = {
    "type": ["object", "null"],
    "description": "What a call should take that came now, on the runner where it should end first; null: no "
    "linked runner can run it. What it decides is told by `POST /fn/{name}?explain=1`.",
    "properties": {
        "wait_s": {**_SECONDS, "description": "Until a slot is free, by the last report."},
        "load_s": {**_SECONDS, "description": "Until what isn't loaded is."},
        "exec_s": {**_SECONDS, "description": "Its execution, on average."},
        "exec_p95_s": {**_SECONDS, "description": "What 95 of 100 executions don't exceed."},
        "is_known": {"type": "boolean", "description": "Both are measured; else the budget's."},
        "has_room": {"type": "boolean", "description": "A slot is free, by the last report."},
        "is_cold": {"type": "boolean", "description": "Something has to be loaded first."},
        "knows_wait": {
            "type": "boolean",
            "description": "The wait is measured, and the runner has just said that it is full: else the "
            "wait decides nothing.",
        },
    },
}

LANE: Final[Json] = {
    "type": ["object", "null"],
    "description": "What waits for it in the ledger, as of the last second or two; null: nothing is known.",
    "properties": {
        "waiting": {"type": "integer", "description": "Jobs that wait."},
        "waiting_cost": {"type": "number", "description": "Their cost together."},
        "rate": {"type": ["number", "null"], "description": "The cost of jobs that start in a second."},
        "is_measured": {
            "type": "boolean",
            "description": "That was measured while jobs waited; else it is what runners report.",
        },
        "wait_s": {
            "type": ["number", "null"],
            "description": "Seconds until all of them should have started; null: not known.",
        },
        "places": {"type": "integer", "description": "Places in line that are outstanding."},
        "line_s": {**_SECONDS, "description": "Seconds to the end of the longest line."},
    },
}

LIVE: Final[Json] = {
    "type": "array",
    "description": "How it stands on each runner that is linked to this gateway.",
    "items": {
        "type": "object",
        "required": ["runner_id", "load", "capacity"],
        "properties": {
            "runner_id": {"type": "string", "format": "uuid"},
            "load": {"type": "integer", "description": "Calls that run or wait in its slots."},
            "capacity": CAPACITY,
        },
    },
}
