"""The table of problem codes: what each means, its status, and what the caller can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of problem.

    Args:
        status: the HTTP status that it is answered with.
        title: what it is, in a few words; the same for every occurrence.
        meaning: what happened, for a human.
        remedy: what the caller can do about it.
        retry_after: seconds that `Retry-After` says unless the occurrence knows better; None sends none.
        headers: headers that every occurrence carries unless it brings its own.
    """

    status: int
    title: str
    meaning: str
    remedy: str
    retry_after: int | None = None
    headers: tuple[tuple[str, str], ...] = ()


KINDS: Final[Mapping[str, Kind]] = {
    "malformed-json": Kind(
        400,
        "The body is not valid JSON",
        "The body could not be read as JSON. Reading is strict: UTF-8 without a byte order mark, "
        "no duplicate keys, no NaN or Infinity, no number out of range, no lone surrogates, "
        "at most 100 levels deep.",
        "Send the body as RFC 8259 JSON; the detail says where reading stopped.",
    ),
    "malformed-header": Kind(
        400,
        "A header is malformed",
        "A request header could not be understood.",
        "Correct the header that the detail names, or leave it out.",
    ),
    "bad-request": Kind(
        400,
        "The request could not be understood",
        "Something in the request line or its parameters is not as documented.",
        "Compare the request with the API reference.",
    ),
    "missing-key": Kind(
        401,
        "An API key is needed",
        "The request carries no API key.",
        "Send the header `Authorization: Bearer KEY`; an operator makes keys with `headrace keys create`.",
        headers=(("WWW-Authenticate", 'Bearer realm="headrace"'),),
    ),
    "invalid-key": Kind(
        401,
        "The API key is not valid",
        "The API key is unknown or has been revoked.",
        "Check that the key is complete, or ask an operator for a new one.",
        headers=(("WWW-Authenticate", 'Bearer realm="headrace", error="invalid_token"'),),
    ),
    "forbidden": Kind(
        403,
        "The key does not allow this",
        "The API key is valid, but lacks the scope that this request needs, or may not call this function.",
        "Use a key that has what the detail names; an operator makes keys with `headrace keys create`.",
        headers=(("WWW-Authenticate", 'Bearer realm="headrace", error="insufficient_scope"'),),
    ),
    "priority-not-allowed": Kind(
        403,
        "The priority is not allowed",
        "The `Headrace-Priority` is above the highest that the owner of the key may ask for.",
        "Ask for what the detail names, or for less; an operator sets what an owner may ask for.",
        headers=(("WWW-Authenticate", 'Bearer realm="headrace", error="insufficient_scope"'),),
    ),
    "unknown-function": Kind(
        404,
        "No such function",
        "No function of this name has been registered.",
        "`GET /fn` lists the functions; a function appears when a runner that serves it starts.",
    ),
    "unknown-job": Kind(
        404,
        "No such job",
        "None of your jobs has this id.",
        "Compare the id with the `Location` of the 202 answer; `GET /jobs` lists your jobs.",
    ),
    "unknown-batch": Kind(
        404,
        "No such batch",
        "None of your batches has this id.",
        "Compare the id with the `Location` of the 202 answer; `GET /batches` lists your batches.",
    ),
    "not-found": Kind(
        404,
        "Nothing is here",
        "The path leads nowhere.",
        "Compare the path with the API reference at `/docs`.",
    ),
    "method-not-allowed": Kind(
        405,
        "The method is not allowed here",
        "The resource exists but does not support this method.",
        "Use one of the methods in the `Allow` header.",
    ),
    "not-acceptable": Kind(
        406,
        "No acceptable form of the answer",
        "The `Accept` header rules out every form in which this resource can answer.",
        "Accept `application/json`; calls of functions, and a job's events, also have `text/event-stream`.",
    ),
    "request-timeout": Kind(
        408,
        "The body did not arrive in time",
        "The body came too slowly: it may take 30 seconds, or longer at 64 KiB a second, "
        "that of a batch at 512 KiB a second. The function was not started.",
        "Send the request again, over a faster connection or with less in one call.",
    ),
    "not-finished": Kind(
        409,
        "It is not finished yet",
        "The job has no result yet, or the batch has jobs that aren't finished.",
        "Ask again after `Retry-After` seconds, or wait for it with `GET /jobs/{id}` and `Prefer: wait=N`.",
        retry_after=2,
    ),
    "no-result": Kind(
        409,
        "The job has no result",
        "The job ended without a result; `error` says why.",
        "Nothing will come: make the call again if its error may pass.",
    ),
    "already-finished": Kind(
        409,
        "The job is already finished",
        "The job had ended before it could be cancelled.",
        "`GET /jobs/{id}` says how it ended.",
    ),
    "not-retryable": Kind(
        409,
        "The job cannot be retried",
        "Only a job that failed, expired or was cancelled can be retried.",
        "`GET /jobs/{id}` says how it stands; make another call if it is wanted once more.",
    ),
    "job-cancelled": Kind(
        409,
        "The job was cancelled",
        "The job was cancelled while its result was awaited.",
        "Make the call again if its result is wanted after all.",
    ),
    "function-retired": Kind(
        410,
        "The function has been retired",
        "The function existed and was retired by an operator; it will not come back by itself.",
        "Stop calling it; `GET /fn` lists what there is.",
    ),
    "result-expired": Kind(
        410,
        "The result has expired",
        "The job succeeded, but its result was not kept any longer.",
        "Fetch results in time: how long they are kept is the operator's `HEADRACE_RESULT_TTL`.",
    ),
    "payload-too-large": Kind(
        413,
        "The body is too large",
        "The body is over the function's input limit, or a batch has an input that is, or a body over the "
        "operator's limit for batches. It was not read to its end.",
        "Send less in one call, or in one batch: the detail names the limit in bytes. That of an input is in "
        "`GET /fn/{name}`, that of a batch is the operator's `HEADRACE_BATCH_BYTES`.",
    ),
    "unsupported-media-type": Kind(
        415,
        "The content type is not supported",
        "The body was not declared as JSON in UTF-8, or it is compressed.",
        "Send `Content-Type: application/json`, uncompressed.",
        headers=(("Accept", "application/json"),),
    ),
    "invalid-input": Kind(
        422,
        "The input is not valid",
        "The body is JSON, but no input of this function, or no batch that could ever be accepted. `errors` "
        "lists each fault with its JSON Pointer.",
        "Correct the input; the function's schema is in `GET /fn/{name}` and in the API reference.",
    ),
    "key-conflict": Kind(
        422,
        "The idempotency key stands for another call",
        "A call of the same function was made under this `Idempotency-Key`, with another input.",
        "Send the first input to get its answer, or use a new key for a new call.",
    ),
    "quota-exceeded": Kind(
        429,
        "The quota is used up",
        "The owner of the key is at its quota, of calls per second or of unfinished jobs.",
        "Try again after `Retry-After` seconds, and send less at once; an operator sets quotas.",
        retry_after=2,
    ),
    "function-failed": Kind(
        500,
        "The function failed",
        "The function raised an error. It is not tried again, because it would most likely fail again.",
        "Read the detail; if it says nothing useful, give the request id to the function's developer.",
    ),
    "invalid-output": Kind(
        500,
        "The function's output is not valid",
        "The function returned something that its output type refuses, or that is over its output limit.",
        "Nothing on the caller's side; give the request id to the function's developer.",
    ),
    "attempts-exhausted": Kind(
        500,
        "Every attempt failed",
        "The function failed for a passing reason as often as its declaration allows.",
        "Try again later; if it persists, give the request id to an operator.",
    ),
    "internal-error": Kind(
        500,
        "Something went wrong here",
        "The platform itself failed; the cause is in its log, under the request id.",
        "Give the request id to an operator.",
    ),
    "worker-lost": Kind(
        502,
        "The process that ran the call was lost",
        "Every start that the call was allowed was lost with the process that ran it, or no runner could "
        "start it again in time. A stream isn't started again after its first item.",
        "The call may have had effects; call again if repeating it is harmless.",
    ),
    "no-runner": Kind(
        503,
        "No runner serves this function now",
        "The function is registered, but no connected runner serves it.",
        "Try again after `Retry-After` seconds; an operator can start a runner.",
        retry_after=5,
    ),
    "function-degraded": Kind(
        503,
        "The function cannot be loaded",
        "A runner serves the function but could not load what it needs, such as its model.",
        "Try again after `Retry-After` seconds; `GET /fn/{name}` and the runner's log have the cause.",
        retry_after=30,
    ),
    "busy": Kind(
        503,
        "No room for the call now",
        "Every slot is taken, the call could not start within the wait that is allowed, and it may not "
        "become a job, or could not be recorded as one. Functions that "
        "are not async share one slot in each executor: a long call or job of one of them keeps it. Or the "
        "gateway takes as many batches, or as large ones, as it can.",
        "Try again after `Retry-After` seconds. Without `Headrace-Async: never` the call would be a job, "
        "which waits for its turn. More slots are the operator's to give: `HEADRACE_EXECUTORS`.",
        retry_after=1,
    ),
    "upstream-busy": Kind(
        503,
        "What the function needs is busy",
        "The function was started as often as its declaration allows, and what it needs elsewhere, such as "
        "a model's server, took no more work at the last start, and said for how long.",
        "Try again after `Retry-After` seconds; until then the runner takes no other call of the function. A "
        "job waits that long, where the function may be started more than once.",
        retry_after=5,
    ),
    "backlog-full": Kind(
        503,
        "Too many jobs wait",
        "As many jobs of the function wait as may wait, or what waits costs too much or has waited too long; "
        "the job was not accepted.",
        "Try again after `Retry-After` seconds, and not sooner; where the answer gives a place in line, with "
        "that in `Headrace-Place`, or with the same `Idempotency-Key`: room is kept for it for 5 s.",
        retry_after=5,
    ),
    "no-capacity": Kind(
        503,
        "It could not start in time",
        "What waits already would keep the job waiting for longer than it may, so that it would expire "
        "without having been started; it was not accepted.",
        "Try again after `Retry-After` seconds, and not sooner; where the answer gives a place in line, with "
        "that in `Headrace-Place`, or with the same `Idempotency-Key`: room is kept for it for 5 s. A job "
        "may wait as long as the function's `queue` budget and `Headrace-Deadline` allow; more runners are "
        "the operator's to give.",
        retry_after=5,
    ),
    "intake-paused": Kind(
        503,
        "Nothing new is taken now",
        "An operator has paused the function, or the whole site: no call, job or batch is taken. What was "
        "accepted before goes on, and can be asked for.",
        "Try again after `Retry-After` seconds; the detail may say why it is paused.",
        retry_after=30,
    ),
    "database-unavailable": Kind(
        503,
        "The database cannot be reached",
        "The request needs Postgres, which does not answer at the moment.",
        "Try again after `Retry-After` seconds; nothing needs a restart.",
        retry_after=5,
    ),
    "hold-exceeded": Kind(
        504,
        "The answer did not come while the connection could be held",
        "The call was not finished when the time for which a connection may be held ended, and may not be "
        "answered by a job. It was stopped, unless the detail names a job that goes on.",
        "Send less in one call, or leave out `Headrace-Async: never`: then it goes on as a job. More time is "
        "for the function's developer to give (`sync` in its budget), up to the operator's "
        "`HEADRACE_MAX_HOLD`; `Prefer: wait=N` only shortens it.",
    ),
    "deadline-unreachable": Kind(
        504,
        "The deadline could not be met",
        "Less time was left until the call's deadline than the function mostly takes, so it was not started.",
        "Allow more time in `Headrace-Deadline`, or leave it out; the detail says how long executions take.",
    ),
    "soft-limit-exceeded": Kind(
        504,
        "The call passed its soft limit",
        "The function ran longer than its soft limit and ended itself.",
        "Send less in one call, or ask the function's developer for a larger budget.",
    ),
    "hard-limit-exceeded": Kind(
        504,
        "The call passed its hard limit",
        "The function ran longer than its hard limit, and the process that ran it was stopped.",
        "Send less in one call, or ask the function's developer for a larger budget.",
    ),
    "queue-deadline-exceeded": Kind(
        504,
        "The job could not start in time",
        "The job had not been started when the time for which it may wait ended; it was never executed.",
        "Call again when there is less to do, or ask the function's developer for a larger `queue` budget.",
    ),
    "deadline-exceeded": Kind(
        504,
        "The deadline passed",
        "The call was not finished at its deadline, after which its result would be worthless.",
        "Allow more time in `Headrace-Deadline`, or send less in one call.",
    ),
}
"""Every problem code. Codes are part of the API: they may be added, never renamed."""
