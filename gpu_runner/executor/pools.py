"""Threads for synchronous functions of a `concurrency` over 1, a pool for each function."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpu_runner.executor.starts import Start
from headrace.sdk import Function


class Pools:
    """The pools, each made when its first call comes.

    Args:
        perform: runs a start to its end, in a thread of its function's pool.
        refuse: answers a start that got no thread.
    """

    def __init__(self, perform: Callable[[Start], None], refuse: Callable[[Start, Exception], None]) -> None:
        self._perform = perform
        self._refuse = refuse
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._queued: set[Start] = set()

    def submit(self, start: Start) -> None:
        """Have it run in its function's pool; where that can't start a thread, this one alone fails."""
        self._queued.add(start)
        try:
            self._pool(start.function).submit(self._perform_queued, start)
        except (RuntimeError, MemoryError) as error:
            # The pool has queued it all the same, and an older thread may have come to it already, or will
            # later and take itself for idle too early: that pool gets no more calls.
            self._pools.pop(start.function.name).shutdown(wait=False)
            if self._claim(start):
                self._refuse(start, error)

    def _pool(self, function: Function[Any, Any]) -> ThreadPoolExecutor:
        pool = self._pools.get(function.name)
        if pool is None:
            pool = self._pools[function.name] = ThreadPoolExecutor(
                function.manifest.concurrency, thread_name_prefix=function.name
            )
        return pool

    def _perform_queued(self, start: Start) -> None:
        if self._claim(start):
            self._perform(start)

    def _claim(self, start: Start) -> bool:
        """Whether it is the caller's to answer; true once."""
        try:
            self._queued.remove(start)
        except KeyError:
            return False
        return True
