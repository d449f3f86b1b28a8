"""Nobody has to ask for what time decides: expiry, leases that ran out, and slow chores.

Every gateway and every runner keeps a `Maintenance`; gateways also do the chores (`maintenance.chores`).
"""

from __future__ import annotations

from headrace.maintenance.clock import ClockGuard
from headrace.maintenance.loop import Maintenance

__all__ = ["ClockGuard", "Maintenance"]
