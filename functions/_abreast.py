"""Parts of a pass beside each other, each computed by one thread.

Where several threads share a product, all wait for the slowest at its end: a hundred times in a pass, and for
as long as another process has one of the cores. Parts that have a thread each wait once. Beside other work
that took a tenth of the time of 32 texts off, and as much CPU time (docs/performance.md).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import Any, Final, TypeVar

Part = TypeVar("Part")
Made = TypeVar("Made")

_TOKENS: Final = 64  # of a part: products of fewer rows take nearly as long as of so many


class Abreast:
    """As many threads as torch may use in this process, each of which computes by itself.

    They end when this object is no longer used, and before the process does. Unlike a `ThreadPoolExecutor`,
    all are there from the start, and no lock is left locked where the one that waits is interrupted.
    """

    def __init__(self) -> None:
        import torch

        self.number = torch.get_num_threads()
        self._work: SimpleQueue[Any] = SimpleQueue()
        if self.number < 2:
            return
        ready: SimpleQueue[None] = SimpleQueue()
        threads = [
            Thread(target=_compute, args=(self._work, ready), name=f"abreast-{number}", daemon=True)
            for number in range(self.number)
        ]
        for thread in threads:
            thread.start()
        for _ in threads:
            ready.get()
        torch.set_num_threads(self.number)  # setting it in a thread sets it for those that come later
        weakref.finalize(self, _end, self._work, threads)

    def parts(self, lengths: Sequence[int]) -> list[list[int]]:
        """Indices of texts of such lengths in tokens, in parts that take about as long as each other.

        One part where more would gain nothing.
        """
        number = min(self.number, len(lengths), sum(lengths) // _TOKENS)
        if number < 2:
            return [list(range(len(lengths)))]
        parts: list[list[int]] = [[] for _ in range(number)]
        taken = [0] * number
        for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
            least = taken.index(min(taken))
            parts[least].append(index)
            taken[least] += lengths[index]
        return parts

    def map(self, compute: Callable[[Part], Made], parts: Sequence[Part]) -> list[Made]:
        """What is made of each part, in order.

        Raises:
            BaseException: what was raised of a part, once all have ended. What is raised in the thread that
                waits here ends the wait at once; the parts are computed to their end.
        """
        if self.number < 2:
            return [compute(part) for part in parts]
        answers: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()
        for index, part in enumerate(parts):
            self._work.put((compute, part, index, answers))
        came = sorted((answers.get() for _ in parts), key=lambda answer: answer[0])
        for _, _, error in came:
            if error is not None:
                raise error
        return [made for _, made, _ in came]


def _compute(work: SimpleQueue[Any], ready: SimpleQueue[None]) -> None:
    import torch

    torch.set_num_threads(1)
    torch.get_num_threads()  # the first time in a thread, this takes what was last set in any; then no more
    ready.put(None)
    del ready
    while (task := work.get()) is not None:
        compute, part, index, answers = task
        try:
            answers.put((index, compute(part), None))
        except BaseException as error:
            answers.put((index, None, error))
        del task, compute, part, answers  # which may be all that keeps this pool, and a model, in memory


def _end(work: SimpleQueue[Any], threads: list[Thread]) -> None:
    for _ in threads:
        work.put(None)
    for thread in threads:
        if thread is not current_thread():  # in which the last use of a pool may have ended
            thread.join()
