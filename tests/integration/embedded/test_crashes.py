"""What crashes leave behind, and that nothing of it matters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from harness.servers import (
    answer,
    holder,
    is_alive,
    postmaster_pid,
    wait_until_gone,
    write_a_row,
)

from headrace.embedded import EmbeddedPostgres


def postgres_users_process(home: Path) -> subprocess.Popen[bytes]:
    """A process of the user who owns the data, busy elsewhere."""
    owner = (home / "postgres").stat()
    identity = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
    return subprocess.Popen(["sleep", "120"], cwd="/", **identity)  # type: ignore[call-overload]


def test_a_killed_holder_leaves_a_server_that_the_next_one_takes_over(home: Path) -> None:
    with holder(home) as process:
        pid = postmaster_pid(home)
        process.kill()
        process.wait()
    assert is_alive(pid)

    with EmbeddedPostgres(home) as postgres:
        assert postmaster_pid(home) == pid
        assert answer(postgres.url) == "headrace"
    assert not is_alive(pid)


def test_a_visitor_leaves_running_what_it_found_running(home: Path) -> None:
    with holder(home) as process:
        pid = postmaster_pid(home)
        process.kill()
        process.wait()

    with EmbeddedPostgres(home, visits=True) as postgres:
        assert answer(postgres.url) == "headrace"
    with EmbeddedPostgres(home, visits=True):
        assert postmaster_pid(home) == pid
    assert is_alive(pid)

    with EmbeddedPostgres(home):
        assert postmaster_pid(home) == pid
    assert not is_alive(pid)


def test_a_visitor_outlives_the_killed_holder_and_leaves_its_server_running(home: Path) -> None:
    with holder(home) as process, EmbeddedPostgres(home, visits=True) as postgres:
        pid = postmaster_pid(home)
        process.kill()
        process.wait()
        assert answer(postgres.url) == "headrace"
    assert is_alive(pid)


def test_a_server_that_visitors_started_becomes_a_holders_who_is_killed(home: Path) -> None:
    with EmbeddedPostgres(home, visits=True) as postgres:
        pid = postmaster_pid(home)
        with holder(home) as process:
            process.kill()
            process.wait()
    assert is_alive(pid)
    assert answer(postgres.url) == "headrace"


def test_kill_9_of_everything_loses_nothing_that_was_committed(home: Path) -> None:
    with holder(home) as process:
        write_a_row(EmbeddedPostgres(home).url)
        pid = postmaster_pid(home)
        process.kill()
        os.kill(pid, signal.SIGKILL)
        process.wait()
    wait_until_gone(pid)
    assert (home / "postgres" / "postmaster.pid").exists()

    with EmbeddedPostgres(home) as postgres:
        assert answer(postgres.url, "SELECT value FROM kept") == 42


def test_a_stale_lock_file_whose_pid_is_another_process_now(home: Path) -> None:
    with EmbeddedPostgres(home):
        pass
    # Unlike root's, an ordinary user's own process would make Postgres believe that it runs already.
    other = postgres_users_process(home)
    try:
        lines = [
            str(other.pid),
            str(home / "postgres"),
            "1700000000",
            "5432",
            str(home),
            "",
            "  1  2",
            "ready   ",
        ]
        (home / "postgres" / "postmaster.pid").write_text("\n".join(lines) + "\n")

        with EmbeddedPostgres(home) as postgres:
            assert postmaster_pid(home) != other.pid
            assert answer(postgres.url) == "headrace"
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_half_written_lock_file_is_no_obstacle(home: Path) -> None:
    with EmbeddedPostgres(home):
        pass
    (home / "postgres" / "postmaster.pid").write_text("")

    with EmbeddedPostgres(home) as postgres:
        assert answer(postgres.url) == "headrace"


def test_a_server_that_dies_is_started_again_by_its_holder(home: Path) -> None:
    with EmbeddedPostgres(home) as postgres:
        pid = postmaster_pid(home)
        os.kill(pid, signal.SIGKILL)
        wait_until_gone(pid)
        assert not postgres.is_running()
        postgres.start()
        assert postmaster_pid(home) != pid
        assert answer(postgres.url) == "headrace"
    assert not postgres.is_running()


def test_a_shell_in_the_data_folder_is_no_obstacle(home: Path) -> None:
    with EmbeddedPostgres(home):
        pass
    with (
        subprocess.Popen(["sleep", "120"], cwd=home / "postgres") as shell,
        EmbeddedPostgres(home) as postgres,
    ):
        assert answer(postgres.url) == "headrace"
        shell.kill()


def test_a_zombie_that_nobody_reaps_counts_as_gone(home: Path) -> None:
    with holder(home) as process:
        pid = postmaster_pid(home)
        os.kill(pid, signal.SIGKILL)
        wait_until_gone(pid)  # its parent, the holder, never asks for its end
        assert Path(f"/proc/{pid}").exists()
        with EmbeddedPostgres(home) as postgres:
            assert postmaster_pid(home) != pid
            assert answer(postgres.url) == "headrace"
        process.communicate("")


def test_a_crash_in_the_making_of_the_data_folder_leaves_no_half(empty_home: Path) -> None:
    (empty_home / "postgres.new").mkdir()
    (empty_home / "postgres.new" / "PG_VERSION").write_text("18\n")

    with EmbeddedPostgres(empty_home) as postgres:
        assert answer(postgres.url) == "headrace"
    assert not (empty_home / "postgres.new").exists()


def test_a_forked_child_does_not_stop_it(home: Path) -> None:
    code = f"""
import os
from pathlib import Path
from headrace.embedded import EmbeddedPostgres
postgres = EmbeddedPostgres(Path({str(home)!r}))
postgres.start()
if (child := os.fork()) == 0:
    raise SystemExit  # leaves through atexit, unlike os._exit
os.waitpid(child, 0)
print(postgres.is_running(), flush=True)
if (child := os.fork()) == 0:
    import time
    time.sleep(30)  # a fork that outlives its parent, with a copy of the lock
    os._exit(0)
postgres.stop()
print(postgres.is_running(), flush=True)
os.kill(child, 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.stdout == "True\nFalse\n", done.stderr


def test_ctrl_c_of_the_terminal_does_not_reach_it(home: Path) -> None:
    with EmbeddedPostgres(home):
        assert os.getsid(postmaster_pid(home)) == postmaster_pid(home) != os.getsid(0)
