"""What the exception of a body is to whoever called."""

from __future__ import annotations

from gpu_runner.executor.failures import failure_of
from headrace.errors import CannotWait, DeclarationError, NotInstalled, PermanentError


def test_only_what_is_meant_for_callers_is_told_them() -> None:
    """A declaration's error names files of the server: a body can meet one by an import of its own."""
    for error in (
        DeclarationError("/srv/secret.py:3: function 'f'"),
        NotInstalled("f", "pip install /srv/x"),
    ):
        failed = failure_of(error, is_told_to_end=False)
        assert (failed.category, failed.message) == ("function-failed", "The function failed.")
    for error in (PermanentError("for all"), CannotWait("for all")):
        failed = failure_of(error, is_told_to_end=False)
        assert (failed.category, failed.message) == ("function-failed", "for all")
