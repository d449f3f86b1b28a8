"""Whether leases can be believed."""

from __future__ import annotations

from typing import Final

TOLERANCE_S: Final = 1.0
"""A clock that moves by more than this from one look to the next has jumped."""
SLOW_S: Final = 0.4
"""An answer that takes longer tells the database's time too roughly to be of use."""


class ClockGuard:
    """Says whether a lease that has run out means that its runner is gone.

    Leases are instants of the database's clock. When that clock jumps, all leases may seem to have run out at
    once; when Postgres was away, runners couldn't renew them. From either on, and from the start, leases
    don't count for as long as one lasts: every runner that lives renews its own meanwhile.

    Instants of this machine are seconds of its boot-time clock, which nobody sets and which goes on while
    the machine sleeps.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._offset: float | None = None
        self._trusted_at = float("-inf")
        self._vague = False

    def compare(self, before: float, database: float, after: float) -> float:
        """Compare the clocks, with a look at the database's (Unix seconds) between two at this machine's.

        Returns:
            How far the database's clock jumped since the last look, roughly; 0 for no jump.
        """
        self._vague = after - before > SLOW_S
        if self._vague:
            return 0.0
        # Off by half of SLOW_S at most, so two of them show every jump, and nothing that isn't one.
        offset = database - (before + after) / 2
        jump = 0.0 if self._offset is None else offset - self._offset
        self._offset = offset
        if abs(jump) <= TOLERANCE_S - SLOW_S:
            return 0.0
        self.distrust(after)
        return jump

    def distrust(self, at: float) -> None:
        """Let no lease count for as long as one lasts."""
        self._trusted_at = at + self._lease_s

    def trusts(self, at: float) -> bool:
        """Whether leases count. After a slow answer, which may hide a jump, they don't until the next one."""
        return at >= self._trusted_at and not self._vague
