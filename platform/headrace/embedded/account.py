"""The operating system's user that Postgres runs as; it refuses to run as root."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.errors import SetupError

USER: Final = "pgserver"
_SEARCH: Final = stat.S_IXOTH
_READ: Final = stat.S_IROTH


@dataclass(frozen=True, slots=True)
class Account:
    """Whom Postgres runs as: a user of its own under root, else this process's user (None)."""

    user: pwd.struct_passwd | None

    @classmethod
    def find(cls) -> Account:
        """The account to use here; made when it is missing.

        Raises:
            SetupError: this is root and the user can't be made.
        """
        if os.geteuid() != 0:
            return cls(None)
        try:
            return cls(pwd.getpwnam(USER))
        except KeyError:
            _add_user()
        return cls(pwd.getpwnam(USER))

    def popen_arguments(self) -> dict[str, Any]:
        """What makes `subprocess` run a program as this account."""
        if self.user is None:
            return {}
        return {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Give a file or folder to the account."""
        if self.user is not None:
            os.chown(path, self.user.pw_uid, self.user.pw_gid)

    def let_reach(self, folder: Path) -> None:
        """Let the account pass through all folders above `folder`; reading them stays as it was."""
        if self.user is None:
            return
        for parent in folder.parents:
            mode = parent.stat().st_mode
            if not mode & _SEARCH:
                parent.chmod(stat.S_IMODE(mode) | _SEARCH)

    def let_use(self, folder: Path) -> None:
        """Let the account run and read everything in `folder`, installed perhaps for root alone."""
        if self.user is None:
            return
        self.let_reach(folder)
        if folder.stat().st_mode & (_READ | _SEARCH) == _READ | _SEARCH:
            return
        for path in [*folder.rglob("*"), folder]:  # the folder last: by it, others that start know it is done
            if not path.is_symlink():
                mode = stat.S_IMODE(path.stat().st_mode)
                path.chmod(mode | _READ | (_SEARCH if mode & stat.S_IXUSR else 0))


def _add_user() -> None:
    program = shutil.which("useradd", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    advice = f"run as an ordinary user, add a user {USER!r}, or set HEADRACE_DATABASE_URL"
    if program is None:
        raise SetupError(f"Postgres does not run as root, and there is no useradd to make a user: {advice}")
    command = [program, "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", USER]
    made = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no outside text
    if made.returncode not in {0, 9}:  # 9: another process has just made it
        raise SetupError(f"the user {USER!r} for Postgres can't be made ({made.stderr.strip()}): {advice}")
