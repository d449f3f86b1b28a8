"""What a job has yielded and the ledger doesn't have yet."""

from __future__ import annotations

from itertools import accumulate, takewhile
from typing import Final

from gpu_runner.frames import CREDIT_BYTES

CREDIT: Final = 64
"""How far a body may get ahead of the ledger: so many items, or so many times 64 KiB."""
_MUCH: Final = CREDIT // 2


class Unwritten:
    """Items of one start, as JSON and in order; `before` is how many came before them."""

    __slots__ = ("_credit", "_items", "before", "is_closed")

    def __init__(self) -> None:
        self.before = 0
        self.is_closed = False
        """Whether the ledger takes nothing more of this start."""
        self._items: list[bytes] = []
        self._credit = 0

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, item: bytes) -> None:
        """The job has yielded an item."""
        self._items.append(item)
        self._credit += _credit_of(item)

    @property
    def is_much(self) -> bool:
        """Whether the body will soon have to wait for them to be written."""
        return self._credit >= _MUCH

    def fitting(self, size: int) -> int:
        """How many of the first have no more bytes together than that."""
        return sum(1 for _ in takewhile(lambda total: total <= size, accumulate(map(len, self._items))))

    def first(self, count: int) -> list[bytes]:
        """So many of the first."""
        return self._items[:count]

    def take(self, count: int) -> int:
        """Let go of the first ones; returns the credit that they had taken."""
        taken = sum(map(_credit_of, self._items[:count]))
        del self._items[:count]
        self.before += count
        self._credit -= taken
        return taken

    def close(self) -> int:
        """Let go of all, as the ledger doesn't take them; returns the credit that they had taken."""
        self.is_closed = True
        return self.take(len(self._items))


def _credit_of(item: bytes) -> int:
    return max(1, -(-len(item) // CREDIT_BYTES))
