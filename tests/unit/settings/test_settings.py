from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from headrace.errors import SettingsError
from headrace.pools import LABELS_RULE, NAME_RULE
from headrace.settings import Settings, load_settings, mask_password, misspelled, origins

SECRET = "postgresql://app:hunter2@db.example/headrace"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.upper().startswith("HEADRACE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_defaults_are_those_of_the_documentation(tmp_path: Path) -> None:
    settings = load_settings()

    assert settings.model_dump() == {
        "home": tmp_path / ".headrace",
        "host": "127.0.0.1",
        "port": 8000,
        "database_url": "",
        "database_direct_url": "",
        "functions": ["functions"],
        "runners": 1,
        "runner_advertise": "",
        "device": "auto",
        "pool": "",
        "labels": "",
        "device_cap": 0,
        "memory": 0,
        "load_timeout": 600,
        "drain_seconds": 10.0,
        "max_hold": 55.0,
        "public_url": "",
        "brief_wait": 0.25,
        "outage_grace": 30.0,
        "start_patience": 60.0,
        "executors": 1,
        "executor_nice": 0,
        "log_errors": False,
        "runner_metrics": "",
        "lease": 30.0,
        "result_ttl": 86_400.0,
        "job_ttl": 604_800.0,
        "key_ttl": 86_400.0,
        "audit_ttl": 34_560_000.0,
        "backlog": 100_000,
        "backlog_cost": 0.0,
        "backlog_age": 0.0,
        "owner_jobs": 20_000,
        "batch_queue": 86_400.0,
        "batch_bytes": 268_435_456,
    }
    assert set(origins().values()) == {"default"}


def test_environment_wins_over_the_file_and_an_override_over_both(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("HEADRACE_PORT=9001\nHEADRACE_HOST=0.0.0.0\nHEADRACE_DEVICE=cpu\nOTHER=x\n")
    monkeypatch.setenv("HEADRACE_PORT", "9002")
    monkeypatch.setenv("HEADRACE_DEVICE", "")

    settings = load_settings(runners=2, host=None)

    assert (settings.port, settings.host, settings.device, settings.runners) == (9002, "0.0.0.0", "cpu", 2)
    found = origins()
    assert (found["port"], found["host"], found["device"], found["home"]) == (
        "environment",
        ".env",
        ".env",
        "default",
    )


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("HEADRACE_PORT", "eighty", "a whole number from 1 to 65535"),
        ("HEADRACE_PORT", "65536", "a whole number from 1 to 65535"),
        ("HEADRACE_PORT", "0", "a whole number from 1 to 65535"),
        ("HEADRACE_RUNNERS", "0", "a whole number from 1 to 64"),
        ("HEADRACE_FUNCTIONS", "good,not good", "names of Python modules, separated by commas"),
        ("HEADRACE_FUNCTIONS", ",", "names of Python modules, separated by commas"),
        ("HEADRACE_DEVICE", "tpu", "auto, cpu, cuda, or cuda:N"),
        ("HEADRACE_POOL", "a b", f"* for every pool, empty, or a name: {NAME_RULE}"),
        ("HEADRACE_POOL", "gpu=h200", f"* for every pool, empty, or a name: {NAME_RULE}"),
        ("HEADRACE_LABELS", "gpu", LABELS_RULE),
        ("HEADRACE_LABELS", "gpu=h200,gpu=b200", LABELS_RULE),
        ("HEADRACE_DEVICE_CAP", "-1", "a whole number from 0 (no cap) to 10000"),
        ("HEADRACE_DEVICE_CAP", "10001", "a whole number from 0 (no cap) to 10000"),
        ("HEADRACE_MEMORY", "-1", "a size such as 8GiB, or 0 for a share of what there is"),
        ("HEADRACE_MEMORY", "much", "a size such as 8GiB, or 0 for a share of what there is"),
        ("HEADRACE_LOAD_TIMEOUT", "0", "seconds over 0, up to 86400"),
        ("HEADRACE_DRAIN_SECONDS", "3601", "seconds from 0 to 3600"),
        ("HEADRACE_MAX_HOLD", "-1", "seconds over 0, up to 3600"),
        ("HEADRACE_MAX_HOLD", "nan", "seconds over 0, up to 3600"),
        ("HEADRACE_BRIEF_WAIT", "inf", "seconds from 0 to 10"),
        (
            "HEADRACE_PUBLIC_URL",
            "example.org",
            "http://... or https://... without query and fragment, or empty",
        ),
        ("HEADRACE_RUNNER_ADVERTISE", "localhost:1", "tcp://host:port or unix:/absolute/path, or empty"),
        ("HEADRACE_RUNNER_METRICS", "9100", "host:port, or empty for a free port of the loopback interface"),
        (
            "HEADRACE_HOST",
            "two words",
            "an address of this machine to listen on, such as 127.0.0.1 or 0.0.0.0",
        ),
    ],
)
def test_a_wrong_value_names_setting_value_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, allowed: str
) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(SettingsError) as caught:
        load_settings()

    assert str(caught.value) == f"{name}={value}: allowed is {allowed}"


def test_labels_have_one_order_and_survive_the_way_to_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_LABELS", " zone=b , gpu=H200")
    monkeypatch.setenv("HEADRACE_POOL", "*")

    environment = load_settings(drain_seconds=0.5).environment()

    assert (environment["HEADRACE_LABELS"], environment["HEADRACE_POOL"]) == ("gpu=H200,zone=b", "*")
    assert environment["HEADRACE_DRAIN_SECONDS"] == "0.5"


def test_each_wrong_setting_has_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PORT", "x")
    Path(".env").write_text("HEADRACE_RUNNERS=many\n")

    with pytest.raises(SettingsError) as caught:
        load_settings(device="abacus")

    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "HEADRACE_PORT=x",
        "HEADRACE_RUNNERS=many",
        "HEADRACE_DEVICE=abacus",
    ]


def test_a_wrong_secret_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DATABASE_URL", "mysql://app:hunter2@db/x?sslpassword=hunter3")

    with pytest.raises(SettingsError) as caught:
        load_settings()

    text = str(caught.value)
    assert "HEADRACE_DATABASE_URL=mysql://app:***@db/x?sslpassword=***" in text
    assert "hunter" not in text
    assert "HEADRACE_DATABASE_DIRECT_URL" not in text


def test_the_direct_url_is_the_other_one_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DATABASE_URL", SECRET)
    assert load_settings().database_direct_url == SECRET

    monkeypatch.setenv("HEADRACE_DATABASE_DIRECT_URL", "postgres://db2/x")
    assert load_settings().database_direct_url == "postgres://db2/x"

    monkeypatch.delenv("HEADRACE_DATABASE_URL")
    with pytest.raises(SettingsError, match="HEADRACE_DATABASE_DIRECT_URL=postgres://db2/x: allowed is"):
        load_settings()


def test_a_repr_holds_no_secret() -> None:
    settings = load_settings(database_url=SECRET)

    assert "hunter2" not in repr(settings)
    assert settings.masked()["database_url"] == "postgresql://app:***@db.example/headrace"
    assert settings.with_database("postgresql:///x").database_direct_url == "postgresql:///x"


def test_the_environment_reproduces_the_settings_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = load_settings(
        home="data",
        database_url=SECRET,
        functions="a.b, c,a.b",
        max_hold=12.125,
        brief_wait=0,
        public_url="https://ai.example/x/",
        runner_advertise="unix:/run/r.sock",
        device="cuda:1",
    )
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))

    assert load_settings() == settings
    assert settings.functions == ["a.b", "c"]
    assert settings.public_url == "https://ai.example/x"


def test_a_home_with_a_tilde_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))

    assert load_settings(home="~/headrace").home == tmp_path / "me" / "headrace"


def test_a_typo_is_noticed_and_a_functions_own_setting_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PROT", "1")
    monkeypatch.setenv("HEADRACE_EMBED_MODEL", "/models/other")
    monkeypatch.setenv("HEADRACE_URL", "http://x")
    Path(".env").write_text("HEADRACE_RUNNER=2\n")

    assert misspelled() == {"HEADRACE_PROT": "HEADRACE_PORT", "HEADRACE_RUNNER": "HEADRACE_RUNNERS"}


def test_a_file_that_is_no_text_is_one_clear_error() -> None:
    Path(".env").write_bytes(b"HEADRACE_PORT=\xff\xfe\n")

    with pytest.raises(SettingsError, match=r"^\.env can't be read"):
        load_settings()
    for read in (misspelled, origins):
        with pytest.raises(SettingsError, match=r"^\.env can't be read"):
            read()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_one_clear_error() -> None:
    Path(".env").write_text("HEADRACE_PORT=1\n")
    Path(".env").chmod(stat.S_IWUSR)

    with pytest.raises(SettingsError, match=r"^\.env can't be read"):
        load_settings()


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("postgresql://u:p:w@h:5/d", "postgresql://u:***@h:5/d"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("postgresql://u:p@w@h/d", "postgresql://***"),
        ("postgresql://u@corp:p@h/d", "postgresql://***"),
        ("postgresql://u:p", "postgresql://***"),
        ("postgresql://u:p@h:1,[::1]:2/d?x=y", "postgresql://u:***@h:1,[::1]:2/d?x=y"),
        ("host=h password=p", "***"),
        ("host=h password=p://", "***"),
        (
            "postgresql:///d?host=%2Ftmp%2Fa%20b&password=x",
            "postgresql:///d?host=%2Ftmp%2Fa%20b&password=***",
        ),
        ("postgresql://u:p/w?@h/d", "postgresql://***"),
        ("postgresql://[u:p@h/d", "postgresql://[u:***@h/d"),
        ("", ""),
    ],
)
def test_passwords_are_masked_wherever_they_are(url: str, masked: str) -> None:
    assert mask_password(url) == masked


@pytest.mark.parametrize("mark", ["@", "/", "?", "#", "/@"])
@pytest.mark.parametrize("name", ["database_url", "database_direct_url"])
def test_a_url_with_two_readings_is_refused_without_a_part_of_the_password(name: str, mark: str) -> None:
    with pytest.raises(SettingsError, match=r"\*\*\*: in its user and password, write @ as %40") as caught:
        load_settings(**{name: f"postgresql://app:hunter2{mark}hunter3@h/x"})

    assert "hunter" not in str(caught.value)


def test_a_connection_string_of_another_form_is_not_shown() -> None:
    with pytest.raises(SettingsError, match=r"^HEADRACE_DATABASE_URL=\*\*\*: allowed is") as caught:
        load_settings(database_url="host=h password=SECRET")

    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://",
        "postgresql:///x",
        "postgres://u:p%40w%2F@h:5432/x",
        "postgresql://u:p@h1:1,h2:2/x?target_session_attrs=any",
        "postgresql://u:p@[::1]:5432/x",
        "postgresql://u:p:w@h",
        "postgresql://u@/x?host=/run/postgresql&port=5433",
        "postgresql://%2Frun%2Fpostgresql/x",
    ],
)
def test_every_clear_url_is_taken(url: str) -> None:
    assert load_settings(database_url=url).database_url == url


def test_every_setting_has_a_description() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
