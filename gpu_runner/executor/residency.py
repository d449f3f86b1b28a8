"""The models that this executor holds: each loaded once, shared by all functions that use it.

What is loaded and unloaded, and when, is decided by the supervisor, which knows all executors.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from gpu_runner.executor.faults import describe
from gpu_runner.executor.memory import DeviceMemory, give_back
from gpu_runner.frames import AboutModels, Loaded, LoadFailed, Loading, Unloaded
from headrace.domain import FOREVER
from headrace.sdk import Device, Function, Model

log = logging.getLogger(__name__)


class Residency:
    """Loaded models by name.

    Args:
        device: where models are loaded.
        functions: whose models these are.
        tell: takes what becomes of them.
        budget: bytes that all executors may take of the device together; 0: what is usual.
    """

    def __init__(
        self,
        device: Device,
        functions: Iterable[Function[Any, Any]] = (),
        tell: Callable[[AboutModels], None] = lambda _: None,
        budget: int = 0,
    ) -> None:
        self._device = device
        self._models = {model.name: model for function in functions for model in function.models.values()}
        self._tell = tell
        self._memory = DeviceMemory(device, budget)
        self._loaded: dict[str, Any] = {}

    @property
    def total(self) -> int:
        """The bytes of the device; 0 for the CPU, and where nothing is to be loaded."""
        return self._memory.total() if self._models else 0

    def load_at_start(self, names: Iterable[str] | None, share: float = 1.0) -> None:
        """Load models before calls come.

        Args:
            names: of the models; None: all that are to be there always.
            share: of the budget, that they may take together.
        """
        if names is None:
            names = [name for name, model in self._models.items() if model.keep_alive == FOREVER]
        before = self._memory.taken()
        for name in names:
            limit = self._memory.share(share)
            self.load(name, limit and max(1, limit - (self._memory.taken() - before)))

    def get(self, model: Model[Any]) -> Any:
        """The loaded model.

        Raises:
            KeyError: it isn't there.
        """
        return self._loaded[model.name]

    def load(self, name: str, limit: int = 0) -> None:
        """Load a model, and tell how that went.

        Args:
            name: of the model.
            limit: the most bytes that it may take; 0: any.
        """
        give_back()  # what calls have left would else be taken for room that the model doesn't need
        self._tell(Loading(name, self._memory.taken() if self._memory.is_own else -1))
        began, before = time.perf_counter(), self._memory.taken()
        try:
            self._memory.allow(limit)
            try:
                self._loaded[name] = self._models[name].load(self._device)
            finally:
                taken = self._memory.taken() - before
                self._memory.allow()
        except Exception as error:
            log.error("model %s could not be loaded: %s", name, describe(error, with_message=True))
            is_over = _is_device_full(error)
            reason = f"model {name} could not be loaded: {type(error).__name__}: {error}"
            if is_over and limit:
                reason = f"model {name} needs more than the {limit} bytes that are left for it"
            del error  # its traceback holds what the loader had
            give_back()
            self._tell(LoadFailed(name, reason.encode("utf-8", "replace").decode(), is_over))
            return
        give_back()
        taken = min(taken, self._memory.taken() - before)
        self._tell(Loaded(name, max(0, taken), time.perf_counter() - began))

    def unload(self, name: str) -> None:
        """Let go of a model, and tell what that has freed."""
        before = self._memory.taken()
        self._loaded.pop(name, None)
        give_back()
        self._tell(Unloaded(name, max(0, before - self._memory.taken())))


def _is_device_full(error: BaseException) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.OutOfMemoryError)
