"""One home's Postgres server: started by its first holder, stopped by its last, unless that is a visitor."""

from __future__ import annotations

import atexit
import hashlib
import os
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

from headrace.embedded import cluster
from headrace.embedded.account import Account
from headrace.embedded.holders import Holders
from headrace.embedded.home import make_home
from headrace.embedded.postmaster import SOCKET_NAME, Postmaster, forget_stale_locks, is_used
from headrace.errors import SetupError

_LONGEST_SOCKET: Final = 107
_SHORT_FOLDER: Final = Path("/tmp")  # noqa: S108 - inside it, a folder of mode 0700 whose owner is checked
_START_S: Final = 120.0  # the replay of a long log after a crash counts
_STOP_S: Final = 20.0
_POLL_S: Final = 0.02
_LOG_BYTES: Final = 2**24


_left_to_others: list[subprocess.Popen[Any]] = []
"""Servers that this process started and others still hold: a child that runs must not be forgotten."""


@atexit.register
def _let_them_be() -> None:
    for process in _left_to_others:
        if process.poll() is None:
            process.returncode = 0  # it lives on, for others: nothing to warn of


class EmbeddedPostgres:
    """The Postgres 18 of one Headrace home; a context manager.

    Starting when it runs, here or in another process, joins it; `url` never changes and is known before the
    start. The server is in a session of its own, out of reach of Ctrl-C, and it survives a holder that is
    killed: the next one takes it over and stops it. Not so a visitor: it stops no server but one that it, or
    another visitor, started for itself.

    Args:
        home: the folder of `HEADRACE_HOME`; data are in `postgres` below it.
        visits: whether this is a visitor, such as a command that reads a table and ends.
    """

    def __init__(self, home: Path, *, visits: bool = False) -> None:
        self._home = home.resolve()
        self._visits = visits
        self.data = self._home / "postgres"
        self.log = self._home / "logs" / "postgres.log"
        self._holders = Holders(self._home / "run")
        self._owner = 0
        self._process: subprocess.Popen[Any] | None = None

    @property
    def url(self) -> str:
        """The address of its database, for libpq and psycopg."""
        folder = quote(str(self.socket_folder), safe="")
        return f"postgresql://{cluster.SUPERUSER}@/{cluster.DATABASE}?host={folder}"

    @property
    def socket_folder(self) -> Path:
        """Where its socket is: the data folder, or a short one when clients can't use that path.

        A socket's path is at most 107 bytes long, and libpq takes a comma for the end of a host.
        """
        path = os.fsencode(self.data / SOCKET_NAME)
        if len(path) <= _LONGEST_SOCKET and b"," not in path:
            return self.data
        name = hashlib.sha256(os.fsencode(self.data)).hexdigest()[:16]
        return _SHORT_FOLDER / f"headrace-{os.geteuid()}-{name}"

    def start(self) -> None:
        """Hold the server, starting it when it doesn't run.

        Raises:
            SetupError: it can't start; one line that says why and what to do.
        """
        try:
            make_home(self._home)
            for folder in (self._holders.folder, self.log.parent):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._holders.mutex():
                self._holders.join()
                self._owner = os.getpid()
                if not self._visits:
                    self._holders.is_passing = False
                try:
                    self._ensure_running()
                except BaseException:
                    self._owner = 0
                    self._leave()
                    raise
        except OSError as error:
            what = f"the embedded Postgres can't use {self._home}"
            raise cluster.explain(what, str(error), self._home) from error
        atexit.register(self.stop)

    def stop(self) -> None:
        """Let go of the server; the last holder waits until it is down. Without effect when not held."""
        if self._owner != os.getpid():  # never started, or a forked child's copy
            return
        self._owner = 0
        atexit.unregister(self.stop)
        with self._holders.mutex():
            self._leave()

    def exists(self) -> bool:
        """Whether there are data: the server was started before."""
        return (self.data / "PG_VERSION").exists()

    def is_running(self) -> bool:
        """Whether the server is up and takes connections."""
        postmaster = Postmaster.read(self.data)
        return postmaster is not None and postmaster.is_alive() and postmaster.is_ready

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _leave(self) -> None:
        """Stop being a holder; the last one stops the server where that is its part."""
        if self._holders.leave() and (self._holders.is_passing or not self._visits):
            self._shut_down()
            self._holders.is_passing = False
        elif self._process is not None:
            _left_to_others.append(self._process)
            self._process = None

    def _ensure_running(self) -> None:
        account = Account.find()
        cluster.prepare(self.data, account)
        deadline = time.monotonic() + _START_S
        position = self._rotate_log()
        if self._process is not None and self._process.poll() is not None:
            self._process = None  # it ran, and was killed since
        while not self.is_running():
            if time.monotonic() > deadline:
                raise SetupError(f"the embedded Postgres isn't ready after {_START_S:g} s: see {self.log}")
            if self._process is not None and self._process.poll() is not None:
                self._process = None
                raise cluster.explain(
                    "the embedded Postgres doesn't start", self._read_log(position), self.data
                )
            # After a crash, processes of the killed server may still be leaving.
            if self._process is None and not is_used(self.data):
                self._launch(account)
            time.sleep(_POLL_S)

    def _launch(self, account: Account) -> None:
        if self._visits:
            self._holders.is_passing = True
        forget_stale_locks(self.data, self.socket_folder)
        self._prepare_socket_folder(account)
        options = {
            "listen_addresses": "",
            "port": "5432",
            # A list, in which a quoted name may hold spaces and commas.
            "unix_socket_directories": '"' + str(self.socket_folder).replace('"', '""') + '"',
            "unix_socket_permissions": "0700",
            "timezone": "UTC",
            "log_timezone": "UTC",
        }
        command = [str(cluster.programs() / "bin" / "postgres"), "-D", str(self.data)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program and arguments
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.data,
                env=cluster.ENVIRONMENT,
                start_new_session=True,
                **account.popen_arguments(),
            )

    def _prepare_socket_folder(self, account: Account) -> None:
        folder = self.socket_folder
        if folder == self.data:
            return
        folder.mkdir(mode=0o700, exist_ok=True)
        expected = os.geteuid() if account.user is None else account.user.pw_uid
        if folder.is_symlink() or folder.stat().st_uid not in {os.geteuid(), expected}:
            raise SetupError(
                f"{folder} belongs to somebody else: remove it, or set HEADRACE_HOME to a shorter path"
            )
        account.own(folder)
        folder.chmod(0o700)

    def _shut_down(self) -> None:
        postmaster = Postmaster.read(self.data)
        # Fast, then at once: what an immediate stop skips is done by the next start.
        for number, patience in ((signal.SIGINT, _STOP_S), (signal.SIGQUIT, _STOP_S)):
            if postmaster is None or not postmaster.is_alive():
                break
            postmaster.send(number)
            deadline = time.monotonic() + patience
            while postmaster.is_alive() and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        if self._process is not None:
            self._process.wait(_STOP_S)
            self._process = None

    def _rotate_log(self) -> int:
        if self.log.exists() and self.log.stat().st_size > _LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        return self.log.stat().st_size if self.log.exists() else 0

    def _read_log(self, position: int) -> str:
        with self.log.open("rb") as log:
            log.seek(position)
            return log.read(2**16).decode(errors="replace")
