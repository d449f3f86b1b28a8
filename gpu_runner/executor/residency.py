"""The models that this executor holds: each loaded once, shared by all functions that use it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from gpu_runner.executor.faults import describe
from headrace.sdk import Device, Function, Model

log = logging.getLogger(__name__)


class Residency:
    """Loaded models by name.

    Args:
        device: where models are loaded.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._loaded: dict[str, Any] = {}
        self._broken: dict[str, str] = {}

    def load_for(self, functions: Iterable[Function[Any, Any]]) -> dict[str, str]:
        """Load what these functions use; returns the reason for each function that can't run."""
        degraded: dict[str, str] = {}
        for function in functions:
            for model in function.models.values():
                self._load(model)
                if model.name in self._broken:
                    degraded[function.name] = self._broken[model.name]
        return degraded

    def get(self, model: Model[Any]) -> Any:
        """The loaded model.

        Raises:
            KeyError: it could not be loaded; `load_for` said so.
        """
        return self._loaded[model.name]

    def _load(self, model: Model[Any]) -> None:
        if model.name in self._loaded or model.name in self._broken:
            return
        try:
            self._loaded[model.name] = model.load(self._device)
        except Exception as error:
            log.error("model %s could not be loaded: %s", model.name, describe(error, with_message=True))
            reason = f"model {model.name} could not be loaded: {type(error).__name__}: {error}"
            self._broken[model.name] = reason.encode("utf-8", "replace").decode()
