from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.postgres import query

from headrace import keys, registry
from headrace.database import Database
from headrace.domain import Budget, Cost, Limits, Manifest, RunnerInfo

Command = Callable[..., subprocess.CompletedProcess[str]]
RUNNER = "0190b8a0-0000-7000-8000-000000000001"


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Run `headrace` on a database, away from the checkout and from settings of this machine."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}

    def run(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "headrace", *arguments],
            env={**clean, "HEADRACE_DATABASE_URL": url, "HEADRACE_HOME": str(tmp_path / "home")},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


async def register(url: str) -> None:
    manifest = Manifest(
        name="echo",
        interface="1f" * 16,
        revision="2e" * 16,
        description="",
        input_schema={},
        output_schema={},
        budget=Budget(),
        limits=Limits(),
        attempts=1,
        concurrency=1,
        cost=Cost(),
        pool="gpu",
        examples=[],
    )
    async with await Database.open(url, application_name="headrace-test") as database:
        runner = RunnerInfo(RUNNER, None, "gpu", {"echo": manifest.interface})
        await registry.register(database, runner, [manifest])


def test_migrate_then_nothing_is_missing(empty_database_url: str, command: Command) -> None:
    missing = command(empty_database_url, "migrate", "--check")
    assert missing.returncode == 1
    assert missing.stderr.startswith("headrace: the database lacks procrastinate-3.10, 0001_")
    assert missing.stderr.endswith("run `headrace migrate`\n")

    applied = command(empty_database_url, "migrate")
    assert applied.returncode == 0
    assert "applied procrastinate-3.10\napplied 0001_" in applied.stdout
    for arguments in (["migrate"], ["migrate", "--check"]):
        done = command(empty_database_url, *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (0, "the schema is up to date\n", "")


def test_key_is_printed_once_and_listed_without_its_secret(database_url: str, command: Command) -> None:
    created = command(database_url, "keys", "create", "--owner", "ada", "--name", "laptop")
    assert created.returncode == 0
    secret = created.stdout.removesuffix("\n")
    assert re.fullmatch(r"hr_[\w-]{43}", secret)
    assert query(database_url, "SELECT hash FROM api_key") == [(keys.hash_key(secret),)]

    listed = command(database_url, "keys", "list").stdout
    assert secret not in listed
    assert re.search(rf"^{secret[:11]} +ada +laptop +call,read +\* +\S+Z +- +\S+$", listed, re.MULTILINE)

    assert command(database_url, "keys", "revoke", secret[:11]).returncode == 0
    assert re.search(
        rf"^{secret[:11]} +ada +laptop +call,read +\* +\S+Z +\S+Z +\S+$",
        command(database_url, "keys", "list").stdout,
        re.MULTILINE,
    )
    again = command(database_url, "keys", "revoke", secret[:11])
    assert (again.returncode, again.stdout) == (1, "")
    assert f"the key {secret[:11]} is revoked since " in again.stderr


def test_owner_is_default_unless_given(database_url: str, command: Command) -> None:
    assert command(database_url, "keys", "create").returncode == 0
    assert query(database_url, "SELECT name FROM owner") == [("default",)]


def test_bad_owner_is_wrong_usage(database_url: str, command: Command) -> None:
    refused = command(database_url, "keys", "create", "--owner", "")
    assert refused.returncode == 2
    assert "the owner must be 1 to 100 characters" in refused.stderr


def test_a_key_that_is_not_revoked_is_told_why(database_url: str, command: Command) -> None:
    secret = command(database_url, "keys", "create").stdout.strip()

    def refused(key: str) -> str:
        done = command(database_url, "keys", "revoke", key)
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr

    no_such = "headrace: there is no key with that id or those first characters: see `headrace keys list`\n"
    assert refused("nonsense") == no_such
    assert refused(secret[:7]).startswith("headrace: that is no whole key: give its first 11 characters, ")
    assert refused(secret[:20]).startswith("headrace: that is no whole key: ")
    assert refused(secret[:-1] + "!").startswith("headrace: that is no whole key: ")
    assert command(database_url, "keys", "revoke", secret).stdout == "revoked\n"
    for key in (secret, secret[:11]):
        assert refused(key).startswith(f"headrace: the key {secret[:11]} is revoked since 2")


def test_a_key_has_the_scopes_and_functions_that_are_given(database_url: str, command: Command) -> None:
    arguments = ["--scope", "read", "--scope", "call", "--function", "score", "--function", "embed"]
    assert command(database_url, "keys", "create", "--owner", "ada", *arguments).returncode == 0
    assert query(database_url, "SELECT scopes, functions FROM api_key") == [
        (["call", "read"], ["embed", "score"])
    ]
    assert re.search(r" ada +- +call,read +embed,score +", command(database_url, "keys", "list").stdout)

    for wrong, why in (
        (["--scope", "write"], "there is no scope 'write': the scopes are call, read, admin"),
        (["--function", "Embed!"], "no function can be named 'Embed!'"),
    ):
        refused = command(database_url, "keys", "create", *wrong)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert why in refused.stderr
    assert query(database_url, "SELECT count(*) FROM api_key") == [(1,)]


def test_owners_are_made_listed_and_limited(database_url: str, command: Command) -> None:
    made = command(database_url, "owners", "create", "shop", "--rate", "2.5", "--burst", "10")
    assert (made.returncode, made.stdout, made.stderr) == (0, "created\n", "")
    again = command(database_url, "owners", "create", "shop")
    assert (again.returncode, again.stderr) == (
        1,
        "headrace: there is an owner 'shop' already: `headrace owners set` changes its quota\n",
    )
    assert command(database_url, "keys", "create", "--owner", "ada").returncode == 0
    for arguments in ([], ["list"]):
        listed = command(database_url, "owners", *arguments).stdout
        assert re.search(r"^shop +0 +0 +default +2\.5 +10 +high +\S+Z$", listed, re.MULTILINE)
        assert re.search(r"^ada +1 +0 +default +none +default +high +\S+Z$", listed, re.MULTILINE)

    done = command(database_url, "owners", "set", "shop", "--outstanding", "7", "--burst", "default")
    now = "shop: outstanding 7, rate 2.5, burst default, highest priority high\n"
    assert (done.returncode, done.stdout) == (0, now)
    assert re.search(r"^shop +0 +0 +7 +2\.5 +default ", command(database_url, "owners").stdout, re.MULTILINE)
    done = command(database_url, "owners", "set", "shop", "--outstanding", "default", "--rate", "none")
    now = "shop: outstanding default, rate none, burst default, highest priority high\n"
    assert (done.returncode, done.stdout) == (0, now)
    assert query(database_url, "SELECT most_outstanding, rate, burst FROM owner WHERE name = 'shop'") == [
        (None, None, None)
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        (["set", "nobody", "--rate", "1"], 1, "there is no owner 'nobody': see `headrace owners`"),
        (["set", "ada"], 2, "nothing to set: give --outstanding, --rate, --burst or --highest-priority"),
        (["set", "ada", "--burst", "5"], 2, "a burst needs a rate that it is within"),
        (["set", "ada", "--outstanding", "0"], 2, "unfinished jobs must be from 1 to 10000000, not 0"),
        *(
            pytest.param(["set", "ada", option, value], 2, why, marks=pytest.mark.slow)
            for option, value, why in (
                ("--outstanding", "1.5", "'1.5' is neither a whole number nor 'default'"),
                ("--rate", "-1", "the rate must be from 0.00001 to 1000000, not -1.0"),
                ("--rate", "nan", "the rate must be from 0.00001 to 1000000, not nan"),
                ("--rate", "ten", "'ten' is neither a number nor 'none'"),
            )
        ),
        (["create", ""], 2, "the owner must be 1 to 100 characters without control characters"),
    ],
)
def test_what_no_owner_can_have_is_refused_and_changes_nothing(
    database_url: str, command: Command, arguments: list[str], status: int, why: str
) -> None:
    query(database_url, "SELECT create_owner_v1('ada', NULL, NULL, NULL, 'high', 'a')")
    refused = command(database_url, "owners", *arguments)
    assert (refused.returncode, refused.stdout) == (status, "")
    assert why in " ".join(refused.stderr.split())
    assert query(database_url, "SELECT name, most_outstanding, rate, burst FROM owner") == [
        ("ada", None, None, None)
    ]


def test_functions_are_listed_and_retired(database_url: str, command: Command) -> None:
    asyncio.run(register(database_url))
    listed = command(database_url, "functions")
    assert re.search(r"^echo +served +1 +gpu +1f1f1f1f1f1f +2e2e2e2e2e2e +\S+Z$", listed.stdout, re.MULTILINE)

    query(database_url, "DELETE FROM runner")
    listed = command(database_url, "functions", "list")
    assert re.search(r"^echo +no-runner +0 ", listed.stdout, re.MULTILINE)

    retired = command(database_url, "functions", "retire", "echo")
    assert (retired.returncode, retired.stdout) == (0, "echo is retired\n")
    assert re.search(r"^echo +retired +- ", command(database_url, "functions").stdout, re.MULTILINE)
    again = command(database_url, "functions", "retire", "echo")
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ["keys", "list"],
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in (["functions"], ["keys", "create"], ["owners"])
        ),
    ],
)
def test_unmigrated_database_is_named_with_the_remedy(
    empty_database_url: str, command: Command, arguments: list[str]
) -> None:
    refused = command(empty_database_url, *arguments)
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert "run `headrace migrate`" in refused.stderr


def test_unreachable_database_is_one_line(command: Command) -> None:
    refused = command("postgresql://ada:hunter2@127.0.0.1:1/headrace", "keys", "list")
    assert refused.returncode == 1
    assert refused.stderr == (
        "headrace: Postgres at 127.0.0.1:1 can't be reached: "
        "connection refused, no server listens on that port\n"
    )
    refused = command("postgresql://ada@/headrace?host=/nowhere", "keys", "list")
    assert refused.stderr == (
        "headrace: Postgres at /nowhere can't be reached: no server listens on that socket\n"
    )


def test_a_key_for_a_function_that_is_not_there_is_made_with_a_warning(
    database_url: str, command: Command
) -> None:
    asyncio.run(register(database_url))
    done = command(database_url, "keys", "create", "--function", "nope", "--function", "echo")

    assert (done.returncode, done.stdout[:3]) == (0, "hr_")
    assert done.stderr == "headrace: no function 'nope' is registered yet: see `headrace functions`\n"


def test_status_says_how_long_a_runner_has_been_silent(database_url: str, command: Command) -> None:
    idle = command(database_url, "status").stdout
    assert "no runner lives: start one with `headrace up` or `headrace runner`" in idle
    assert "no gateway lives: start one with `headrace up` or `headrace gateway`" in idle

    asyncio.run(register(database_url))
    live = command(database_url, "status").stdout
    assert re.search(rf"^{RUNNER} +gpu +- +serves +- +idle +[0-3] s ago +- +- +echo$", live, re.MULTILINE)
    query(database_url, "UPDATE runner SET seen_at = clock_timestamp() - interval '6 s'")
    assert re.search(r" [6-9] s ago \(silent\) ", command(database_url, "status").stdout)


def test_without_a_url_the_embedded_database_is_used(command: Command) -> None:
    assert command("", "migrate").returncode == 0
    secret = command("", "keys", "create").stdout.strip()
    assert secret[:11] in command("", "keys", "list").stdout
