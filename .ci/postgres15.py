"""Runs the tests of the database on Debian's PostgreSQL 15, the oldest that is supported.

A server of its own is made for them in a temporary folder, and removed after. Run it with the environment's
Python; arguments go to pytest instead of the list of tests below. Where there is no PostgreSQL 15 it says so
and ends well, except in CI as root on Debian, where it is installed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from headrace.embedded.account import Account
from headrace.embedded.cluster import ENVIRONMENT

TESTS = (
    "tests/acceptance/test_jobs.py",
    "tests/integration/database",
    "tests/integration/ledger",
    "tests/migration",
)
SAME_ON_ALL = (
    "tests/integration/database/test_chores.py",
    "tests/integration/database/test_clones.py",
    "tests/integration/database/test_commands.py",
    "tests/integration/database/test_maintenance.py",
    "tests/integration/database/test_restart.py",
    "tests/integration/database/test_runner_requests.py",
    "tests/integration/ledger/test_any_order.py",
    "tests/integration/ledger/test_starts.py",
)
"""What takes long, and whose statements others in `TESTS` make too; `make test` has it, on a newer server."""

VERSION = "15"
PACKAGE = f"postgresql-{VERSION}"
DEBIANS = Path(f"/usr/lib/postgresql/{VERSION}/bin")
PATIENCE_S = 60
SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",
    # Nothing in it outlives the tests.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
}


def main() -> int:
    """Run the tests, and give their exit status."""
    programs = find() or install()
    if programs is None:
        return 0
    with server(programs) as url:
        environment = {**os.environ, "HEADRACE_TEST_DATABASE_URL": url}
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-n", "3", "--dist", "loadfile"]
        command += sys.argv[1:] or [*TESTS, *(f"--ignore={path}" for path in SAME_ON_ALL)]
        return subprocess.run(command, env=environment, check=False).returncode


def find() -> Path | None:
    """The folder of the programs of PostgreSQL 15."""
    for folder in (DEBIANS, *map(Path, os.environ.get("PATH", os.defpath).split(os.pathsep))):
        if (folder / "initdb").is_file():
            says = subprocess.run([folder / "initdb", "--version"], stdout=subprocess.PIPE, check=False)
            if f") {VERSION}.".encode() in says.stdout:
                return (folder / "initdb").resolve().parent
    return None


def install() -> Path | None:
    """Install it where that is nobody else's business: in CI, as root.

    Raises:
        SystemExit: it could not be installed there.
    """
    if not os.environ.get("CI") or os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(f"skipped: there is no PostgreSQL {VERSION} here (Debian's package is {PACKAGE})")
        return None
    # Debian's package makes a cluster and starts it, unless its defaults say no.
    defaults = Path("/etc/postgresql-common/createcluster.conf")
    if not defaults.exists():
        defaults.parent.mkdir(parents=True, exist_ok=True)
        defaults.write_text("create_main_cluster = false\n")
    get = ["apt-get", "-o", "Dpkg::Options::=--force-confold"]
    quietly = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["update"], ["install", "-y", "--no-install-recommends", PACKAGE]):
        done = subprocess.run([*get, *step], env=quietly, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{PACKAGE} can't be installed: {done.stderr.strip()}")
    print(f"installed {PACKAGE}")
    if (programs := find()) is None:
        raise SystemExit(f"{PACKAGE} is installed, but not in {DEBIANS}")
    return programs


@contextmanager
def server(programs: Path) -> Iterator[str]:
    """The URL of a running server, on a Unix socket that only this user and root reach."""
    account = Account.find()
    # Short, for the socket's path.
    folder = Path(tempfile.mkdtemp(prefix="hr15-", dir="/tmp")).resolve()
    account.own(folder)
    log = folder / "log"
    data = folder / "data"
    try:
        with log.open("wb") as output:
            as_account = {"cwd": folder, "env": ENVIRONMENT, "stdout": output, "stderr": output}
            as_account |= account.popen_arguments()
            initdb = [programs / "initdb", "--username=postgres", "--auth=trust", "--encoding=UTF8"]
            subprocess.run([*initdb, "--locale=C", "--no-sync", f"--pgdata={data}"], check=True, **as_account)
            options = [f"-c{name}={value}" for name, value in SETTINGS.items()]
            command = [programs / "postgres", "-D", data, "-k", folder, *options]
            with subprocess.Popen(command, **as_account) as process:
                try:
                    wait_until_ready(data / "postmaster.pid", process)
                    yield f"postgresql://postgres@/postgres?host={quote(str(folder), safe='')}"
                finally:
                    process.send_signal(signal.SIGINT)
    except (subprocess.CalledProcessError, TimeoutError) as error:
        raise SystemExit(f"PostgreSQL {VERSION}: {error}\n{log.read_text(errors='replace')}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_ready(lock: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait for the line by which a server says that it takes connections.

    Raises:
        TimeoutError: it doesn't come.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not (lock.exists() and "ready" in lock.read_text()):
        if process.poll() is not None or time.monotonic() > deadline:
            raise TimeoutError("the server doesn't start")
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
