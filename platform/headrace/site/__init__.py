"""A whole site on one machine: Postgres, gateway and runners, watched by this process.

Everything is let go in the opposite order of need: gateway, runners, Postgres.
"""

from __future__ import annotations

from headrace.site.environment import runner_environment
from headrace.site.lock import running_url
from headrace.site.site import Site, Started

__all__ = ["Site", "Started", "runner_environment", "running_url"]
