"""What this gateway can serve: the registry's functions, each with its compiled schema."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import jsonschema_rs

from headrace.domain import Manifest
from headrace.gateway.intake import Gate, nothing_known
from headrace.gateway.metrics import FunctionMetrics, GatewayMetrics
from headrace.gateway.problems import Problem
from headrace.gateway.schema_faults import choice, multiplies, without_unions
from headrace.registry import Registry
from headrace.sdk.schemas import compiled

log = logging.getLogger(__name__)

_MOST_ERRORS = 20
_ALL_ERRORS_BYTES = 2**14  # the library finds one fault or all: all of a mebibyte's take four seconds
_MASK: Final = "the value"  # an error says what is expected, never what somebody sent
_SOMEWHERE: Final = {"path": "", "message": "the input doesn't satisfy the function's schema"}
_MOST_KNOWN: Final = 4
_MOST_OPTIONS: Final = 64  # the library names two
_UNION_KINDS: Final = (
    jsonschema_rs.ValidationErrorKind.AnyOf,
    jsonschema_rs.ValidationErrorKind.OneOfNotValid,
    jsonschema_rs.ValidationErrorKind.OneOfMultipleValid,
    jsonschema_rs.ValidationErrorKind.Not,
)


class ServedFunction:
    """A function with what is prepared for its calls.

    Args:
        manifest: as registered.
        metrics: its counters.

    Raises:
        ValueError: the manifest's schema can't be used.
    """

    __slots__ = (
        "_explains_all",
        "_fixed_cost",
        "_outline",
        "_validator",
        "manifest",
        "metrics",
        "tells_cost",
    )

    def __init__(self, manifest: Manifest, metrics: FunctionMetrics) -> None:
        self.manifest = manifest
        self.metrics = metrics
        self._validator = compiled(manifest.input_schema, mask=_MASK)
        self._outline = _outline(manifest.input_schema)
        self._explains_all = not multiplies(manifest.input_schema)
        varies = manifest.cost.varies
        self._fixed_cost = None if varies else manifest.cost.of(None)
        self.tells_cost = varies or manifest.batch is not None
        """Whether runners are to know what an input costs."""

    def cost_of(self, value: Any) -> float:
        """What an input costs."""
        return self.manifest.cost.of(value) if self._fixed_cost is None else self._fixed_cost

    def check(self, value: Any, size: int) -> None:
        """Check an input, of so many bytes of JSON, against the registered schema.

        Raises:
            Problem: `invalid-input`, with the path and message of each fault; of a large input's first.
                Faults in a union may be told as one of the whole input.
        """
        if self._validator.is_valid(value):
            return
        found = self._errors(value, size)
        errors = [fault for error in found for fault in self._explain(error)] or [_SOMEWHERE]
        first = errors[0]
        where = f"at {first['path']}: " if first["path"] else ""
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise Problem("invalid-input", f"{where}{first['message']}{more}", errors=errors[:_MOST_ERRORS])

    def _explain(self, error: jsonschema_rs.ValidationError) -> list[dict[str, str]]:
        if isinstance(error.kind, _UNION_KINDS):
            is_too_much = isinstance(error.kind, jsonschema_rs.ValidationErrorKind.OneOfMultipleValid)
            said = choice(self.manifest.input_schema, error.schema_path, is_too_much=is_too_much)
            if said is not None:
                return [{"path": _pointer(error.instance_path), "message": said}]
        return _explain(error)

    def _errors(self, value: Any, size: int) -> list[jsonschema_rs.ValidationError]:
        if size <= _ALL_ERRORS_BYTES:
            return list((self._validator if self._explains_all else self._outline).iter_errors(value))
        try:
            self._outline.validate(value)
        except jsonschema_rs.ValidationError as error:
            return [error]
        return []


class Directory:
    """The functions in service and those that were retired; replaced as a whole when the registry changes.

    A runner registers a changed interface before it is linked, and may leave while runners with the old one
    stay. So the last few interfaces of each function are kept, and the newest that is linked is served. The
    registry has only the newest: a gateway that started later than a change doesn't know what was before.

    Args:
        metrics: where calls are counted.
        is_linked: whether a linked runner takes calls of a function, by name, with an interface.
        gate: which functions take what is new; by default all.
    """

    def __init__(
        self,
        metrics: GatewayMetrics,
        is_linked: Callable[[str, str], bool] = lambda _name, _interface: False,
        gate: Gate | None = None,
    ) -> None:
        self.gate = gate or Gate(nothing_known)
        self.functions: Mapping[str, ServedFunction] = {}
        self.retired: Mapping[str, datetime] = {}
        self._metrics = metrics
        self._is_linked = is_linked
        self._known: dict[str, list[ServedFunction]] = {}  # one for each interface, newest first
        self._unusable: dict[str, Manifest] = {}
        self._alive: frozenset[tuple[str, str]] = frozenset()
        self._seen: dict[tuple[str, str], float] = {}  # by name and interface
        self._linked: frozenset[tuple[str, str]] = frozenset()
        self._gone: dict[tuple[str, str], float] = {}  # since when it isn't linked

    @property
    def manifests(self) -> dict[str, Manifest]:
        """Manifests by name."""
        return {name: function.manifest for name, function in self.functions.items()}

    def update(self, registry: Registry) -> None:
        """Take over a reading of the registry; what hasn't changed keeps its compiled schema."""
        known = {name: self._interfaces(manifest) for name, manifest in registry.functions.items()}
        self._known = {name: interfaces for name, interfaces in known.items() if interfaces}
        self.retired = registry.retired
        now = time.monotonic()
        alive = frozenset(one for runner in registry.serving for one in runner.interfaces.items())
        self._gone |= dict.fromkeys(alive - self._alive, now)
        self._alive = alive
        self._seen = {one: now - seconds for one, seconds in registry.last_seen.items()}
        self.choose()

    def choose(self) -> None:
        """Serve the newest interface that is linked, or just the newest; run when links come or go."""
        self.functions = {
            name: next((one for one in known if self._is_linked(name, one.manifest.interface)), known[0])
            for name, known in self._known.items()
        }
        self._note_links(time.monotonic())

    def _note_links(self, now: float) -> None:
        known = {(name, one.manifest.interface) for name, ones in self._known.items() for one in ones}
        linked = frozenset(one for one in known if self._is_linked(*one))
        left = self._linked - linked
        self._linked = linked
        since = {one: now if one in left else self._gone.get(one, now) for one in (self._alive | left)}
        self._gone = {one: at for one, at in (self._gone | since).items() if one in known - linked}

    def away_s(self, name: str, interface: str) -> float | None:
        """How many seconds ago a function was last linked here, or a runner of it last seen; None: never.

        While a runner of it lives that isn't linked: since it was first read of, or lost its link if that is
        later. Its heart beats all the time, which says nothing of when it can be reached.
        """
        served = (name, interface)
        at = self._gone.get(served, float("-inf"))
        if served not in self._alive:
            at = max(at, self._seen.get(served, float("-inf")))
        return None if math.isinf(at) else time.monotonic() - at

    def was_served(self, name: str, interface: str, seconds: float) -> bool:
        """Whether a runner that executes the function lives, or did so many seconds ago."""
        served = (name, interface)
        if served in self._alive or self._is_linked(*served):
            return True
        return time.monotonic() - self._seen.get(served, float("-inf")) <= seconds

    def _interfaces(self, manifest: Manifest) -> list[ServedFunction]:
        known = self._known.get(manifest.name, [])
        if known and known[0].manifest == manifest:
            return known
        try:
            newest = ServedFunction(manifest, self._metrics.of(manifest.name))
        except Exception as error:
            # It mustn't take the other functions with it.
            if self._unusable.get(manifest.name) != manifest:
                reason = str(error).partition("\n")[0]
                log.error("the registered schema of %s can't be used: %s", manifest.name, reason)
            self._unusable[manifest.name] = manifest
            return known
        others = [one for one in known if one.manifest.interface != manifest.interface]
        return [newest, *others][:_MOST_KNOWN]

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


def _outline(schema: dict[str, Any]) -> jsonschema_rs.Draft202012Validator:
    try:
        return compiled(without_unions(schema), mask=_MASK)
    except ValueError:  # a reference leads into what was left out
        return compiled({})


def _explain(error: jsonschema_rs.ValidationError) -> list[dict[str, str]]:
    """An error of the schema library as (path, message); a missing field's path is the field's own."""
    path = _pointer(error.instance_path)
    kind = error.kind
    match kind:
        case jsonschema_rs.ValidationErrorKind.Required(property=name):
            return [{"path": path + _pointer([name]), "message": "this field is required"}]
        case jsonschema_rs.ValidationErrorKind.AdditionalProperties(unexpected=names):
            return [{"path": path + _pointer([name]), "message": "no such field"} for name in names]
        case jsonschema_rs.ValidationErrorKind.Enum(options=options) if len(options) <= _MOST_OPTIONS:
            known = ", ".join(json.dumps(option, ensure_ascii=False) for option in options)
            return [{"path": path, "message": f"{_MASK} is not one of {known}"}]
        case _:
            return [{"path": path, "message": error.message}]


def _pointer(path: Any) -> str:
    """RFC 6901."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
