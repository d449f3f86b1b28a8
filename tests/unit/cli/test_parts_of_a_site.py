from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.demo import _makes_sense
from headrace.cli.output import pretty
from headrace.errors import SettingsError, SetupError
from headrace.settings import Settings
from headrace.site import running_url
from headrace.site.address import base_url, check_free, free_port, get_status
from headrace.site.child import Child, describe_end
from headrace.site.environment import check_runner_addresses, runner_environment, site_runner_environment
from headrace.site.key_file import read_key, write_key
from headrace.site.lock import HomeLock


def test_one_site_per_home(tmp_path: Path) -> None:
    assert running_url(tmp_path) is None
    first = HomeLock(tmp_path)
    first.take("http://127.0.0.1:8000")

    assert running_url(tmp_path) == "http://127.0.0.1:8000"
    said = rf"^already running \(pid {os.getpid()}\) in {tmp_path} at http://127\.0\.0\.1:8000: stop it"
    with pytest.raises(SetupError, match=said):
        HomeLock(tmp_path).take("http://127.0.0.1:8001")

    first.release()
    assert running_url(tmp_path) is None
    HomeLock(tmp_path).take("http://127.0.0.1:8001")


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from headrace.site.lock import HomeLock\n"
        "HomeLock(Path(sys.argv[1])).take('http://x'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)

    assert running_url(tmp_path) is None
    HomeLock(tmp_path).take("http://y")


def test_a_taken_port_names_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SetupError) as caught:
            check_free("127.0.0.1", port)
        assert str(caught.value) == (
            f"port {port} on 127.0.0.1 is taken: stop what listens there, or set HEADRACE_PORT"
        )
    check_free("127.0.0.1", free_port("127.0.0.1"))


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_that_is_not_ours_names_the_setting(host: str) -> None:
    with pytest.raises(SetupError, match=f"^HEADRACE_HOST={host} "):
        check_free(host, 8000)


def test_the_url_is_one_that_this_machine_reaches() -> None:
    assert base_url("0.0.0.0", 80) == "http://127.0.0.1:80"
    assert base_url("::", 80) == "http://[::1]:80"
    assert base_url("10.0.0.1", 80) == "http://10.0.0.1:80"


def test_what_is_no_http_answer_is_no_status() -> None:
    async def scenario() -> None:
        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"220 smtp ready\r\n")
            writer.close()

        async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ConnectionError):
                await get_status("127.0.0.1", port, "/readyz")

    asyncio.run(scenario())


def test_the_key_file_is_its_owners_alone(tmp_path: Path) -> None:
    assert read_key(tmp_path) is None
    (tmp_path / ".key.new").write_text("left by a crash")
    (tmp_path / "key").write_text("old")
    (tmp_path / "key").chmod(0o644)

    write_key(tmp_path, "hr_new")

    assert read_key(tmp_path) == "hr_new"
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_a_runner_finds_the_database_and_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    environment = runner_environment(Settings(home=tmp_path / "h"))

    assert environment["PYTHONPATH"] == f"{tmp_path}:/elsewhere"
    assert environment["HEADRACE_DATABASE_URL"].startswith("postgresql://")
    assert environment["HEADRACE_HOME"] == str(tmp_path / "h")


def test_each_runner_has_an_address_and_its_share_of_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    home = Path("/tmp") / f"hr-{os.getpid()}"
    settings = Settings(home=home, runners=3)
    environments = [site_runner_environment(settings, number) for number in (1, 2)]

    assert [e["HEADRACE_RUNNER_ADVERTISE"] for e in environments] == [
        f"unix:{home}/run/runner-1.sock",
        f"unix:{home}/run/runner-2.sock",
    ]
    assert {e["OMP_NUM_THREADS"] for e in environments} == {"2"}
    assert "OMP_NUM_THREADS" not in site_runner_environment(Settings(home=home), 1)

    assert site_runner_environment(Settings(home=home, executors=4), 1)["OMP_NUM_THREADS"] == "2"
    assert {e["HEADRACE_POOL"] for e in environments} == {"*"}
    assert site_runner_environment(Settings(home=home, pool="gpu"), 1)["HEADRACE_POOL"] == "gpu"

    given = Settings(home=home, runner_advertise="tcp://10.0.0.1:9000")
    assert site_runner_environment(given, 1)["HEADRACE_RUNNER_ADVERTISE"] == "tcp://10.0.0.1:9000"


def test_a_long_home_gets_a_short_socket_in_a_closed_folder(tmp_path: Path) -> None:
    address = site_runner_environment(Settings(home=tmp_path / ("x" * 100)), 1)["HEADRACE_RUNNER_ADVERTISE"]
    folder = Path(address.removeprefix("unix:")).parent

    assert len(address) < 80
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.rmdir()


def test_one_address_for_two_runners_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^HEADRACE_RUNNER_ADVERTISE is the address of one runner"):
        check_runner_addresses(Settings(runners=2, runner_advertise="tcp://10.0.0.1:9000"))
    check_runner_addresses(Settings(runners=1, runner_advertise="tcp://10.0.0.1:9000"))


def python(name: str, code: str, folder: Path) -> Child:
    return Child(name, [sys.executable, "-c", code], dict(os.environ), folder / f"{name}.log")


def test_a_child_that_ignores_sigterm_is_killed_with_all_its_own(tmp_path: Path) -> None:
    code = (
        "import signal, subprocess; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "own = subprocess.Popen(['sleep', '300']); print(own.pid, flush=True); own.wait()"
    )

    async def scenario() -> None:
        child = python("stubborn", code, tmp_path)
        await child.start()
        while not (lines := child.last_lines(1)):
            await asyncio.sleep(0.02)
        own = os.pidfd_open(int(lines[0]))
        gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(own, gone.set)
        await child.stop(0.05)
        assert await child.wait() == -signal.SIGKILL
        await asyncio.wait_for(gone.wait(), 10)
        asyncio.get_running_loop().remove_reader(own)
        os.close(own)

    asyncio.run(scenario())


def test_a_childs_last_lines_are_those_of_its_latest_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "talker.log").write_text("from yesterday\n")
        child = python("talker", "print('one'); print('two'); raise SystemExit(3)", tmp_path)
        await child.start()
        assert await child.wait() == 3
        assert child.last_lines(5) == ["one", "two"]
        assert child.last_lines(1) == ["two"]
        await child.stop(1)

    asyncio.run(scenario())


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    child = (
        "from headrace.process import die_with_parent; import os, time; die_with_parent()\n"
        "print(os.getpid(), 'HEADRACE_PARENT_PID' in os.environ, flush=True); time.sleep(300)"
    )
    parent = (
        "import os, subprocess, sys; env = {**os.environ, 'HEADRACE_PARENT_PID': str(os.getpid())}\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], env=env, start_new_session=True).wait()"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid, inherited = process.stdout.readline().split()
        assert inherited == "False"
        process.kill()
        assert process.stdout.read() == ""  # ends only when the child has closed it too
    assert pid != "0"


def test_a_child_whose_parent_is_gone_already_ends_at_once() -> None:
    code = "from headrace.process import die_with_parent; die_with_parent(); print('alive')"
    environment = {**os.environ, "HEADRACE_PARENT_PID": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)

    assert (done.returncode, done.stdout) == (-signal.SIGTERM, b"")


def test_ends_are_told_in_words() -> None:
    assert [describe_end(code) for code in (0, 3, -9)] == ["exit code 0", "exit code 3", "killed by SIGKILL"]


def test_vectors_are_shown_on_one_line() -> None:
    assert pretty({"vectors": [[0.5, -1e-05, 3]], "n": []}) == (
        '{\n  "vectors": [\n    [0.5, -1e-05, 3]\n  ],\n  "n": []\n}'
    )


def test_the_demo_notices_vectors_without_sense() -> None:
    assert _makes_sense([[1, 0], [0.9, 0.1], [0, 1], [0.1, 0.9]])
    assert not _makes_sense([[1, 0], [0, 1], [0.9, 0.1], [0.1, 0.9]])
