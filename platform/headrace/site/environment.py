"""What the processes of a site find in their environment."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from headrace import pools
from headrace.cores import threads_each
from headrace.embedded import EmbeddedPostgres
from headrace.errors import SettingsError, SetupError
from headrace.settings import Settings

_LONGEST_SOCKET: Final = 100
_SHORT_FOLDER: Final = Path("/tmp")  # noqa: S108 - inside it, a folder of mode 0700 whose owner is checked


def gateway_environment(settings: Settings) -> dict[str, str]:
    """The environment of a gateway with these settings."""
    return {**os.environ, **settings.environment(), "PYTHONUNBUFFERED": "1"}


def runner_environment(settings: Settings) -> dict[str, str]:
    """The environment of a runner with these settings: the embedded database named, user modules found.

    The current folder comes first on the module path, so a developer's functions need no installation.
    Several executors share the cores.
    """
    if not settings.database_url:
        settings = settings.with_database(EmbeddedPostgres(settings.home).url)
    path = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        **settings.environment(),
        "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *([path] if path else [])]),
        "PYTHONUNBUFFERED": "1",
    }
    executors = settings.executors * settings.runners
    if executors > 1:
        environment.setdefault("OMP_NUM_THREADS", str(threads_each(executors)))
    return environment


def site_runner_environment(settings: Settings, number: int) -> dict[str, str]:
    """The environment of one of a site's runners, counted from 1: an address, and every pool unless set."""
    environment = runner_environment(settings)
    if not settings.pool:
        environment["HEADRACE_POOL"] = pools.EVERY
    if not settings.runner_advertise:
        environment["HEADRACE_RUNNER_ADVERTISE"] = f"unix:{_socket(settings.home, number)}"
    return environment


def check_runner_addresses(settings: Settings) -> None:
    """Refuse one fixed address for several runners.

    Raises:
        SettingsError: it names the setting.
    """
    if settings.runners > 1:
        for name in ("runner_advertise", "runner_metrics"):
            if getattr(settings, name):
                raise SettingsError(
                    f"HEADRACE_{name.upper()} is the address of one runner, but HEADRACE_RUNNERS is "
                    f"{settings.runners}: leave it empty, and each runner gets its own"
                )


def _socket(home: Path, number: int) -> Path:
    path = home / "run" / f"runner-{number}.sock"
    if len(os.fsencode(path)) > _LONGEST_SOCKET:
        name = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
        folder = _SHORT_FOLDER / f"headrace-run-{os.geteuid()}-{name}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            raise SetupError(f"{folder} is somebody else's: remove it, or set a shorter HEADRACE_HOME")
        path = folder / path.name
    path.unlink(missing_ok=True)
    return path
