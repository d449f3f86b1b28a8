"""Room for so many at once, shared among owners."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator

from headrace.gateway.problems import Problem


class SharedRoom:
    """Room for so many, of which an owner never has all.

    Args:
        most: how many there are.
        of_one_owner: how many of them one owner may have.
        patience_s: how long to wait for one, in seconds.
        what: what takes them, in the plural, as callers are told.
    """

    def __init__(self, most: int, of_one_owner: int, patience_s: float, what: str) -> None:
        self._most = most
        self._of_one_owner = of_one_owner
        self._patience_s = patience_s
        self._what = what
        self._taken: Counter[str] = Counter()  # by owner
        self._left = asyncio.Condition()  # one of them has

    @contextlib.asynccontextmanager
    async def take(self, owner_id: str) -> AsyncGenerator[None]:
        """One of them, waited for while there is none.

        Raises:
            Problem: `busy`, there was none in time.
        """
        try:
            async with asyncio.timeout(self._patience_s), self._left:
                await self._left.wait_for(lambda: self._has_room(owner_id))
        except TimeoutError:
            raise Problem(
                "busy",
                f"This gateway has room for {self._most} {self._what}, {self._of_one_owner} of one owner.",
                headers={"Connection": "close"},
            ) from None
        self._taken[owner_id] += 1
        try:
            yield
        finally:
            self._taken[owner_id] -= 1
            self._taken += Counter()  # forgets owners without any
            async with self._left:
                self._left.notify_all()

    def _has_room(self, owner_id: str) -> bool:
        return self._taken.total() < self._most and self._taken[owner_id] < self._of_one_owner
