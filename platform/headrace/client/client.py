"""The synchronous client."""

from __future__ import annotations

import re
from types import TracebackType
from typing import Any, Final, Self, cast
from urllib.parse import quote

import httpx2

from headrace.client.errors import CallRefused, Unreachable

_CONNECT_S: Final = 5.0
_ERRNO: Final = re.compile(r"^\[Errno -?\d+\] ")


class Client:
    """Calls functions of one site; a context manager.

    Args:
        url: the site's address.
        key: an API key of it.
        timeout: how long an answer may take, in seconds; gateways answer within a minute.
    """

    def __init__(self, url: str, key: str = "", *, timeout: float = 120.0) -> None:
        self._url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx2.Timeout(timeout, connect=_CONNECT_S)
        try:
            self._http = httpx2.Client(base_url=self._url, headers=headers, timeout=limits)
        except httpx2.InvalidURL as error:
            raise Unreachable(f"{url} is no address of a site: {error}") from None

    def call(self, name: str, input: Any) -> Any:  # noqa: A002 - the platform's word for it
        """Call a function and return its output.

        Args:
            name: the function's name.
            input: any JSON value, or JSON as bytes, which are sent as they are.

        Raises:
            CallRefused: the answer is a problem.
            Unreachable: there is no answer, or it is no gateway's.
        """
        body: dict[str, Any] = (
            {"content": input, "headers": {"Content-Type": "application/json"}}
            if isinstance(input, bytes)
            else {"json": input}
        )
        try:
            response = self._http.post(f"/fn/{quote(name, safe='')}", **body)
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            reason = _ERRNO.sub("", str(error)) or type(error).__name__
            raise Unreachable(f"{self._url} does not answer: {reason}") from None
        if response.status_code != 200:
            retry_after = response.headers.get("Retry-After", "")
            raise CallRefused(
                response.status_code, _problem(response), int(retry_after) if retry_after.isdigit() else None
            )
        try:
            return response.json()
        except ValueError:
            raise Unreachable(f"the server at {self._url} is not a Headrace gateway (no JSON)") from None

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _problem(response: httpx2.Response) -> dict[str, Any]:
    try:
        document = response.json()
    except ValueError:
        return {}
    return cast("dict[str, Any]", document) if isinstance(document, dict) else {}
