"""The one error tree of Headrace. No transport in it: a status is chosen once, at the edge.

HeadraceError
├── FunctionError            raised by the author of a function, inside its body
│   ├── InvalidInput         the input can't be served; never retried
│   ├── PermanentError       failed for good; its message is shown to the caller
│   └── TransientError       failed for now; retried while attempts and deadline allow
├── InvocationError          raised by `Call.invoke()`: the other function's call came to nothing
├── CallStopped              raised by `Call.check()`: the call was cancelled or is past its soft limit
├── InvalidOutput            a function returned something it did not declare
├── DeclarationError         a function, model or budget is declared wrongly
│   ├── CannotWait           `Call.invoke()` was used by a body that isn't async
│   └── NotInstalled         a module needs an optional part that isn't installed
├── SettingsError            a setting has a value that isn't allowed
├── SetupError               the machine lacks something that is needed (a port, disk space, a program)
├── DatabaseError            Postgres said something that must not be ignored
│   ├── DatabaseUnavailable  Postgres can't be reached
│   │   └── DatabaseNotReached   and nothing was sent to it
│   ├── DatabaseBusy         Postgres refused, for a reason that passes
│   └── SchemaMismatch       the schema is older or newer than this program, or was changed by hand
└── LinkError                the other end of a link broke the protocol or couldn't prove itself
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of all errors raised by Headrace."""


class FunctionError(HeadraceError):
    """Base of the errors that a function's body raises on purpose."""


class InvalidInput(FunctionError):
    """The input is well-formed but can't be served. Never retried; the message is public.

    Args:
        message: what is wrong, for the caller.
        path: where in the input, as a JSON Pointer (RFC 6901); empty for the whole input.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.path = path


class PermanentError(FunctionError):
    """The call failed and would fail again. Not retried; the message is public."""


class TransientError(FunctionError):
    """The call failed but may work later. Retried inside the original deadline; the message is not public.

    Args:
        message: for the log.
        retry_after: seconds, up to an hour, for which it would fail again, as what it needs is busy. Until
            then the runner takes no call of the function, and this one doesn't start again if it is a job;
            a direct call that has no start left is answered 503, with when to come back.
    """

    def __init__(self, *message: object, retry_after: float | None = None) -> None:
        super().__init__(*message)
        self.retry_after = retry_after


class InvocationError(HeadraceError):
    """What `Call.invoke` was to bring came to nothing; also where the call was never made.

    A body that lets it pass fails as by `TransientError` where `is_passing`, else as by `PermanentError`.

    Args:
        function: the name of the function that was to be called.
        category: a problem code, such as `invalid-input`, `function-failed` or `backlog-full`.
        message: what went wrong, fit for the public.
        job_id: of the call, as a job; None where none was made.
        is_passing: whether the same may succeed later.
        retry_after_s: after how many seconds there should be room; None: not known.
        errors: (JSON Pointer, message) pairs about the input.
    """

    def __init__(
        self,
        function: str,
        category: str,
        message: str,
        *,
        job_id: str | None = None,
        is_passing: bool = False,
        retry_after_s: float | None = None,
        errors: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(f"the call of {function} came to nothing ({category}): {message}")
        self.function = function
        self.category = category
        self.message = message
        self.job_id = job_id
        self.is_passing = is_passing
        self.retry_after_s = retry_after_s
        self.errors = errors


class CallStopped(HeadraceError):
    """The running call was cancelled, or has used up its soft limit."""


class InvalidOutput(HeadraceError):
    """A function returned a value that its declared output type refuses."""


class DeclarationError(HeadraceError):
    """A declaration is wrong; the message names file, function and field."""


class CannotWait(DeclarationError):
    """`Call.invoke` was used by a body that isn't `async def`; unlike of others, the message is public."""


class NotInstalled(DeclarationError):
    """What a module needs isn't installed; raised while it is imported, before it declares a function.

    Of a package that is served, that module is left out, with a line in the log. A named one is refused.

    Args:
        what: what isn't offered without it.
        remedy: the command that installs it.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} needs packages that aren't installed: {remedy}")


class SettingsError(HeadraceError):
    """A setting's value isn't allowed; the message names the setting and what is."""


class SetupError(HeadraceError):
    """Something outside the program is missing or in the way; the message says what to do."""


class DatabaseError(HeadraceError):
    """Postgres answered with something that must not be ignored."""


class DatabaseUnavailable(DatabaseError):
    """Postgres can't be reached."""


class DatabaseNotReached(DatabaseUnavailable):
    """No connection to Postgres could be had, so nothing was sent to it, and nothing took effect."""


class DatabaseBusy(DatabaseError):
    """Postgres refused for a reason that passes: a lock, a timeout, a lack of room. Nothing took effect."""


class SchemaMismatch(DatabaseError):
    """The database's schema isn't the one that this program was built for."""


class LinkError(HeadraceError):
    """The other end of a link broke the protocol, or couldn't prove that it knows the link secret."""
