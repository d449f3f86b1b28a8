"""The clock of leases."""

from __future__ import annotations

import time


def boot_time() -> float:
    """Seconds that go on while the machine sleeps, as a lease does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
