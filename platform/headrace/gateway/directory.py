"""What this gateway can serve: the registry's functions, each with its compiled schema."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jsonschema_rs

from headrace.domain import Manifest
from headrace.gateway.metrics import FunctionMetrics, GatewayMetrics
from headrace.gateway.problems import Problem
from headrace.registry import Registry

_MOST_ERRORS = 20
_ALL_ERRORS_BYTES = 2**14  # the library finds one fault or all: all of a mebibyte's take four seconds


class ServedFunction:
    """A function with what is prepared for its calls.

    Args:
        manifest: as registered.
        metrics: its counters.
    """

    __slots__ = ("_validator", "manifest", "metrics")

    def __init__(self, manifest: Manifest, metrics: FunctionMetrics) -> None:
        self.manifest = manifest
        self.metrics = metrics
        # Masked: an error says what is expected, never what somebody sent.
        self._validator = jsonschema_rs.Draft202012Validator(
            manifest.input_schema, validate_formats=True, mask="the value"
        )

    def check(self, value: Any, size: int) -> None:
        """Check an input, of so many bytes of JSON, against the registered schema.

        Raises:
            Problem: `invalid-input`, with the path and message of each fault; of a large input's first.
        """
        if self._validator.is_valid(value):
            return
        errors = [fault for error in self._errors(value, size) for fault in _explain(error)]
        first = errors[0]
        where = f"at {first['path']}: " if first["path"] else ""
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise Problem("invalid-input", f"{where}{first['message']}{more}", errors=errors[:_MOST_ERRORS])

    def _errors(self, value: Any, size: int) -> list[jsonschema_rs.ValidationError]:
        if size <= _ALL_ERRORS_BYTES:
            return list(self._validator.iter_errors(value))
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return [error]
        raise AssertionError("an input is valid or it isn't")


class Directory:
    """The functions in service and those that were retired; replaced as a whole when the registry changes."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self.functions: Mapping[str, ServedFunction] = {}
        self.retired: Mapping[str, datetime] = {}
        self.is_loaded = False
        self._metrics = metrics

    @property
    def manifests(self) -> dict[str, Manifest]:
        """Manifests by name."""
        return {name: function.manifest for name, function in self.functions.items()}

    def update(self, registry: Registry) -> None:
        """Take over a reading of the registry; what hasn't changed keeps its compiled schema."""
        functions: dict[str, ServedFunction] = {}
        for name, manifest in registry.functions.items():
            known = self.functions.get(name)
            if known is not None and known.manifest == manifest:
                functions[name] = known
            else:
                functions[name] = ServedFunction(manifest, self._metrics.of(name))
        self.functions = functions
        self.retired = registry.retired
        self.is_loaded = True

    def find(self, name: str) -> ServedFunction:
        """The function of that name.

        Raises:
            Problem: `unknown-function` or `function-retired`.
        """
        function = self.functions.get(name)
        if function is not None:
            return function
        if name in self.retired:
            when = self.retired[name].isoformat(timespec="seconds")
            raise Problem("function-retired", f"The function {name} was retired at {when}.")
        raise Problem("unknown-function")


def _explain(error: jsonschema_rs.ValidationError) -> list[dict[str, str]]:
    """An error of the schema library as (path, message); a missing field's path is the field's own."""
    path = _pointer(error.instance_path)
    kind = error.kind
    match kind:
        case jsonschema_rs.ValidationErrorKind.Required(property=name):
            return [{"path": path + _pointer([name]), "message": "this field is required"}]
        case jsonschema_rs.ValidationErrorKind.AdditionalProperties(unexpected=names):
            return [{"path": path + _pointer([name]), "message": "no such field"} for name in names]
        case _:
            return [{"path": path, "message": error.message}]


def _pointer(path: Any) -> str:
    """RFC 6901."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
