"""The synchronous client."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, cast

import httpx2

from headrace.client.errors import CallRefused, ClientError, Unreachable
from headrace.client.events import Event, Follower
from headrace.client.following import output_of
from headrace.client.patience import until_taken
from headrace.client.requests import body_of, line_of, path_of, prefer_header, with_wishes
from headrace.client.resuming import resumed
from headrace.client.streams import CONNECT_S, SILENCE_S, Stream, Told, directly
from headrace.domain import Priority

_ERRNO: Final = re.compile(r"^\[Errno -?\d+\] ")

Job = dict[str, Any]
"""A job as the site shows it: `job_id`, `status`, and what else `GET /jobs/{id}` is documented to have."""


class Page(NamedTuple):
    """A part of a list: its items, and the cursor of what follows, or None at its end."""

    items: list[Job]
    cursor: str | None


class Client:
    """Calls functions of one site and follows jobs; a context manager.

    Every method raises CallRefused when the answer is a problem, and Unreachable when there is no answer, or
    none of a gateway.

    Args:
        url: the site's address.
        key: an API key of it.
        timeout: how long an answer may take, in seconds. Gateways answer within a minute; while Postgres is
            away a call that still runs at the end of its hold is held until its deadline.
    """

    def __init__(self, url: str, key: str = "", *, timeout: float = 120.0) -> None:
        self.on_wait: Callable[[CallRefused], None] | None = None
        """Told of each refusal that the `patience` of a call waits for."""
        self._url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx2.Timeout(timeout, connect=CONNECT_S)
        try:
            self._http = httpx2.Client(base_url=self._url, headers=headers, timeout=limits)
        except httpx2.InvalidURL as error:
            raise Unreachable(f"{url} is no address of a site: {error}") from None

    def call(
        self,
        name: str,
        input: Any,  # noqa: A002 - the platform's word for it
        *,
        idempotency_key: str | None = None,
        deadline: float | None = None,
        priority: Priority | None = None,
        patience: float = 0,
        place: str | None = None,
    ) -> Any:
        """Call a function and return its output, however long it takes: a job that it becomes is followed.

        For that the key needs the scope `read`, and an outage of the site of up to a minute is waited for.
        What is raised from then on has the job's id as its `job_id`: the call was accepted, and may go on.

        Args:
            name: the function's name.
            input: any JSON value, or JSON as bytes, which are sent as they are.
            idempotency_key: made again with it, the call is executed once.
            deadline: seconds within which it has to be done; it only shortens.
            priority: its class, where it is a job.
            patience: seconds for which a refusal for now isn't the end, that is any 429 or 503 that says
                when to come back (no room, a quota, no runner, a pause, Postgres away): the call is made
                again then, with its place in line, and never sooner. Each try has the whole deadline.
                Where the site can't tell whether it was accepted, only one with a key is made again.
            place: a place in line, as an earlier refusal has given it (`CallRefused.place`).
        """
        request = with_wishes(body_of(input), idempotency_key, deadline, priority)
        response = self._until_taken(name, request, patience, place)
        if response.status_code == 202:
            return output_of(self, self._object(response, 202))
        return self._json(response, 200)

    def stream(
        self,
        name: str,
        input: Any,  # noqa: A002 - likewise
        *,
        idempotency_key: str | None = None,
        deadline: float | None = None,
        priority: Priority | None = None,
        on_progress: Callable[[float, str], None] | None = None,
        on_restart: Callable[[int], None] | None = None,
        on_outage: Callable[[ClientError], None] | None = None,
    ) -> Stream:
        """Call a function, and yield the items of its output as they are made; the output itself comes last.

        The call is made when the first item is asked for. Of a function that doesn't stream there are none.
        The stream's `result` is None before the end; its `close()` ends it sooner, and stops the function.

        With an idempotency key the call is a job. A lost connection is made again, for up to a minute, and
        the stream goes on with the item after the last one; whoever leaves doesn't stop the function.

        Args:
            name: the function's name.
            input: any JSON value, or JSON as bytes, which are sent as they are.
            idempotency_key: makes it a job. Made again with it, the call gives the same items from the first
                one on.
            deadline: seconds within which it has to be done; it only shortens.
            priority: its class, where it is a job.
            on_progress: told how far the function is: the fraction that is done, and what it says.
            on_restart: told that a start of the job was lost, so that the items begin anew, and how many are
                void by that: all so far. By default `Restarted` is raised then.
            on_outage: told once, each time that the site is away and is waited for.
        """
        request = with_wishes(body_of(input), idempotency_key, deadline, priority)
        if idempotency_key is not None:
            wanted = functools.partial(self._followed, path_of("fn", name), request, on_outage)
            return Stream(wanted, on_progress, on_restart)
        # A job would go on without its reader, and an item of a lost start would come twice.
        own = {"Accept": "text/event-stream", "Headrace-Async": "never"}
        request["headers"] = {**request.get("headers", {}), **own}
        limits = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
        open_ = functools.partial(self._http.stream, "POST", path_of("fn", name), timeout=limits, **request)
        return Stream(functools.partial(directly, open_, self._refused, self._lost), on_progress)

    def submit(
        self,
        name: str,
        input: Any,  # noqa: A002 - likewise
        *,
        wait: int | None = None,
        idempotency_key: str | None = None,
        deadline: float | None = None,
        priority: Priority | None = None,
        patience: float = 0,
        place: str | None = None,
    ) -> Job:
        """Submit a call as a job, and return the job.

        Args:
            name: the function's name.
            input: any JSON value, or JSON as bytes, which are sent as they are.
            wait: seconds that the job is given to end before it is returned.
            idempotency_key: submitted again with it, the call is the same job.
            deadline: seconds within which it has to be done; it only shortens.
            priority: its class.
            patience: seconds for which a refusal for now isn't the end, as in `call`.
            place: a place in line, as an earlier refusal has given it.
        """
        request = with_wishes(body_of(input), idempotency_key, deadline, priority)
        request["headers"] = {**request.get("headers", {}), "Prefer": prefer_header("respond-async", wait)}
        response = self._until_taken(name, request, patience, place)
        if response.status_code == 200:  # within `wait`: the output itself
            if not (job_id := response.headers.get("Headrace-Job-Id")):
                raise Unreachable(f"the server at {self._url} answered with an output, not with a job")
            return self.job(job_id)
        return self._object(response, 202)

    def job(self, job_id: str, *, wait: int | None = None) -> Job:
        """The job as it stands now, or as soon as it is final within `wait` seconds."""
        headers = {} if wait is None else {"Prefer": prefer_header(None, wait)}
        return self._object(self._ask("GET", path_of("jobs", job_id), headers=headers), 200)

    def jobs(
        self,
        *,
        status: str | None = None,
        function: str | None = None,
        category: str | None = None,
        dead: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page:
        """The jobs of the key's owner, newest first.

        Args:
            status: only those in this state.
            function: only those of this function.
            category: only those whose error is of it.
            dead: only those that failed or expired, and weren't retried.
            limit: how many at most.
            cursor: go on where another page ended.
        """
        given = {
            "status": status,
            "function": function,
            "category": category,
            "dead": "true" if dead else None,
            "limit": limit,
            "cursor": cursor,
        }
        wanted = {name: str(value) for name, value in given.items() if value is not None}
        page = self._object(self._ask("GET", "/jobs", params=wanted), 200)
        return Page(page.get("items", []), page.get("next"))

    def result(self, job_id: str) -> Any:
        """The output of a job that succeeded."""
        return self._json(self._ask("GET", path_of("jobs", job_id, "result")), 200)

    def cancel(self, job_id: str) -> Job:
        """Ask for a job to be cancelled, and return it as it stands then."""
        return self._object(self._ask("POST", path_of("jobs", job_id, "cancel")), 200, 202)

    def retry(self, job_id: str) -> Job:
        """Have a job done again that failed, expired or was cancelled, and return the new one.

        Each job is retried once: asked again, the site answers with the same new job.
        """
        return self._object(self._ask("POST", path_of("jobs", job_id, "retry")), 202)

    def batch(
        self,
        name: str,
        inputs: Iterable[Any],
        *,
        idempotency_key: str | None = None,
        deadline: float | None = None,
        priority: Priority | None = None,
    ) -> Job:
        """Submit many calls as one batch, a job each, all or none; returns the batch.

        Args:
            name: the function's name.
            inputs: any JSON values, or JSON as bytes of one line each; they are sent as they come.
            idempotency_key: made again with it, the batch is accepted once.
            deadline: seconds within which each of its jobs has to be done; it only shortens.
            priority: the class of each.
        """
        headers = {"Content-Type": "application/x-ndjson"}
        body = {"content": map(line_of, inputs), "headers": headers}
        request = with_wishes(body, idempotency_key, deadline, priority)
        return self._object(self._ask("POST", path_of("fn", name, "batch"), **request), 202)

    def batch_status(self, batch_id: str, *, wait: int | None = None) -> Job:
        """The batch as it stands now, or as soon as all its jobs are final within `wait` seconds."""
        headers = {} if wait is None else {"Prefer": prefer_header(None, wait)}
        return self._object(self._ask("GET", path_of("batches", batch_id), headers=headers), 200)

    def batch_results(
        self, batch_id: str, *, after: int | None = None, partial: bool = False
    ) -> Iterator[dict[str, Any]]:
        """What came of each input, in their order: `index`, `job_id`, `status`, and `result` or `error`.

        Args:
            batch_id: the batch's id.
            after: only what follows the input of this index.
            partial: don't refuse a batch with jobs that aren't finished.
        """
        given = {"after": after, "partial": "true" if partial else None}
        wanted = {name: str(value) for name, value in given.items() if value is not None}
        try:
            with self._http.stream("GET", path_of("batches", batch_id, "results"), params=wanted) as response:
                if response.status_code != 200:
                    response.read()
                    raise self._refused(response)
                parts: list[bytes] = []
                for piece in response.iter_bytes():  # not by lines: to httpx2, more than \n ends one
                    parts.append(piece)
                    if b"\n" in piece:
                        *lines, rest = b"".join(parts).split(b"\n")
                        parts = [rest]
                        yield from map(json.loads, lines)
        except httpx2.TransportError as error:
            raise self._lost(error) from None

    def cancel_batch(self, batch_id: str) -> Job:
        """Ask for what isn't finished of a batch to be cancelled, and return it as it stands then."""
        return self._object(self._ask("POST", path_of("batches", batch_id, "cancel")), 200, 202)

    def events(
        self,
        job_id: str,
        last_event_id: str | None = None,
        *,
        on_outage: Callable[[ClientError], None] | None = None,
    ) -> Iterator[Event]:
        """What happened to a job and what happens, until it is final; goes on over lost connections.

        Args:
            job_id: the job's id.
            last_event_id: only what came after the event of this id.
            on_outage: told once, each time that the site is away and is waited for.
        """
        path = path_of("jobs", job_id, "events")
        return iter(Follower(self._http, path, last_event_id, self._refused, self._lost, on_outage))

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _followed(
        self, path: str, call: Mapping[str, Any], on_outage: Callable[[ClientError], None] | None
    ) -> Generator[Told]:
        events = Follower(self._http, path, None, self._refused, self._lost, on_outage, call)
        return resumed(events, functools.partial(output_of, self), self._lost)

    def _ask(self, method: str, path: str, **request: Any) -> httpx2.Response:
        try:
            return self._http.request(method, path, **request)
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            raise self._lost(error) from None

    def _until_taken(
        self, name: str, request: dict[str, Any], patience: float, place: str | None
    ) -> httpx2.Response:
        """The answer to a call, which is made again while that is "not now"."""
        own = request.get("headers", {})

        def ask(more: Mapping[str, str]) -> httpx2.Response:
            return self._ask("POST", path_of("fn", name), **{**request, "headers": {**own, **more}})

        may_repeat = "Idempotency-Key" in own
        return until_taken(
            ask, self._refused, patience=patience, place=place, may_repeat=may_repeat, on_wait=self.on_wait
        )

    def _lost(self, error: Exception) -> Unreachable:
        reason = _ERRNO.sub("", str(error)) or type(error).__name__
        return Unreachable(f"{self._url} does not answer: {reason}")

    def _refused(self, response: httpx2.Response) -> CallRefused:
        said = response.headers.get("Retry-After", "")
        retry_after = int(said) if said.isascii() and said.isdigit() else None  # else it is a date
        return CallRefused(response.status_code, _problem(response), retry_after)

    def _json(self, response: httpx2.Response, *good: int) -> Any:
        if response.status_code not in good:
            raise self._refused(response)
        try:
            return response.json()
        except ValueError:
            raise Unreachable(f"the server at {self._url} is not a Headrace gateway (no JSON)") from None

    def _object(self, response: httpx2.Response, *good: int) -> dict[str, Any]:
        document = self._json(response, *good)
        if not isinstance(document, dict):
            raise Unreachable(f"the server at {self._url} is not a Headrace gateway (no JSON object)")
        return cast("dict[str, Any]", document)


def _problem(response: httpx2.Response) -> Mapping[str, Any]:
    try:
        document = response.json()
    except ValueError:
        return {}
    return cast("dict[str, Any]", document) if isinstance(document, dict) else {}
