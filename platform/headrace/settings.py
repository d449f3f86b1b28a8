"""Settings: `HEADRACE_*` variables and the current folder's `.env`, checked once, then frozen.

The environment wins over `.env`; an empty value counts as not set.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from dotenv import dotenv_values
from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from headrace import pools
from headrace.domain import parse_size
from headrace.errors import SettingsError

PREFIX: Final = "HEADRACE_"
ENV_FILE: Final = ".env"
Origin = Literal["default", "environment", ".env"]

_ALLOWED: Final = {
    "home": "a folder that this user may write to",
    "host": "an address of this machine to listen on, such as 127.0.0.1 or 0.0.0.0",
    "port": "a whole number from 1 to 65535",
    "database_url": "postgresql://user:password@host/database, or empty for the embedded Postgres",
    "database_direct_url": "postgresql://user:password@host/database, only beside HEADRACE_DATABASE_URL",
    "functions": "names of Python modules, separated by commas",
    "runners": "a whole number from 1 to 64",
    "runner_advertise": "tcp://host:port or unix:/absolute/path, or empty",
    "device": "auto, cpu, cuda, or cuda:N",
    "pool": f"* for every pool, empty, or a name: {pools.NAME_RULE}",
    "labels": pools.LABELS_RULE,
    "device_cap": "a whole number from 0 (no cap) to 10000",
    "memory": "a size such as 8GiB, or 0 for a share of what there is",
    "load_timeout": "seconds over 0, up to 86400",
    "drain_seconds": "seconds from 0 to 3600",
    "max_hold": "seconds over 0, up to 3600",
    "public_url": "http://... or https://... without query and fragment, or empty",
    "brief_wait": "seconds from 0 to 10",
    "outage_grace": "seconds from 0 to 3600",
    "start_patience": "seconds from 0 to 3600",
    "executors": "a whole number from 1 to 64",
    "executor_nice": "a whole number from 0 (as other processes) to 19",
    "log_errors": "true or false",
    "lease": "seconds from 1 to 3600",
    "result_ttl": "seconds from 1 to 315360000",
    "backlog": "a whole number from 1 to 10000000",
    "job_ttl": "seconds from 1 to 315360000",
    "key_ttl": "seconds from 1 to 315360000",
    "audit_ttl": "seconds from 1 to 3153600000",
    "backlog_cost": "a number from 0 (no bound) to 1e15",
    "backlog_age": "seconds from 0 (no bound) to 1e9",
    "batch_queue": "seconds from 1 to 315360000",
    "batch_bytes": "bytes from 1 to 1099511627776",
    "owner_jobs": "a whole number from 1 to 10000000",
    "runner_metrics": "host:port, or empty for a free port of the loopback interface",
}
_ESCAPE: Final = "in its user and password, write @ as %40, : as %3A, / as %2F, ? as %3F, # as %23"
_OTHER_NAMES: Final = ("URL", "KEY", "DEBUG", "MODEL_CACHE", "PARENT_PID", "TEST_DATABASE_URL")
"""Variables that are no settings: the client's two, those of this program and its tests, and of functions."""

_SECRET: Final = frozenset({"database_url", "database_direct_url"})
_ACCOUNT_PASSWORD: Final = re.compile(r"(://[^:/@?#]*:).*@")
_QUERY_PASSWORD: Final = re.compile(r"([?&][^=&]*pass[^=&]*=)[^&]*")
_HOST: Final = r"(?:\[[^\]@/?#]*\]|[^\[\]:,@/?#]*)(?::\d*)?"
# No other reading: with an unescaped @ or / in the password, libpq takes part of it for the host.
_CLEAR_URL: Final = re.compile(rf"[\w+.-]+://(?:[^@/?#]*@)?{_HOST}(?:,{_HOST})*(?:[/?#][^@]*)?")
_FILE_NAME: Final = re.compile(r"\.py\s*(,|$)")
_MODULE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Settings(BaseSettings):
    """All settings of one process; `load_settings` makes it and words the errors."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=ENV_FILE,
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
    )

    home: Path = Field(Path(".headrace"), description="embedded Postgres, first key, logs, model cache")
    host: str = Field(
        "127.0.0.1", min_length=1, pattern=r"^\S+$", description="address the gateway listens on"
    )
    port: int = Field(8000, ge=1, le=65535, description="port the gateway listens on")
    database_url: str = Field("", repr=False, description="Postgres 15 or newer; empty: the embedded one")
    database_direct_url: str = Field(
        "", repr=False, description="the same database past any pooling proxy, for LISTEN"
    )
    functions: Annotated[list[str], NoDecode] = Field(["functions"], description="modules with functions")
    runners: int = Field(1, ge=1, le=64, description="how many runners `headrace up` starts")
    runner_advertise: str = Field("", description="where gateways dial this runner; empty: jobs only")
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d{1,2})?)$", description="where models run")
    pool: str = Field("", description="the pool a runner serves; empty: `default`, with `up` every one")
    labels: str = Field("", description="a runner's labels, which functions may ask for")
    device_cap: int = Field(0, ge=0, le=10_000, description="most calls with models at once; 0: any number")
    memory: int = Field(0, ge=0, description="most memory of executors and their models; 0: a share of it")
    load_timeout: float = Field(600, gt=0, le=86_400, description="longest load of a model")
    drain_seconds: float = Field(10, ge=0, le=3600, description="how long a runner that ends lets calls run")
    max_hold: float = Field(55.0, gt=0, le=3600, description="longest hold of a connection")
    public_url: str = Field("", description="what clients see before the path, for problem types and links")
    brief_wait: float = Field(0.25, ge=0, le=10, description="longest wait of a direct call for room")
    outage_grace: float = Field(30, ge=0, le=3600, description="how long calls go on without Postgres")
    start_patience: float = Field(60, ge=0, le=3600, description="how long a start waits for Postgres")
    executors: int = Field(1, ge=1, le=64, description="executor processes of each runner")
    executor_nice: int = Field(0, ge=0, le=19, description="by how much executors come after the rest")
    log_errors: bool = Field(False, description="log messages of functions' exceptions; they may hold inputs")
    runner_metrics: str = Field("", description="where a runner serves /metrics")
    lease: float = Field(30, ge=1, le=3600, description="how long a silent runner keeps its jobs")
    result_ttl: float = Field(86_400, ge=1, le=315_360_000, description="how long a job's result is kept")
    job_ttl: float = Field(604_800, ge=1, le=315_360_000, description="how long a finished job is kept")
    key_ttl: float = Field(86_400, ge=1, le=315_360_000, description="how long an idempotency key is kept")
    audit_ttl: float = Field(34_560_000, ge=1, le=3_153_600_000, description="how long audit rows are kept")
    backlog: int = Field(100_000, ge=1, le=10_000_000, description="most waiting jobs of one function")
    backlog_cost: float = Field(0, ge=0, le=1e15, description="most waiting cost of one function; 0: any")
    backlog_age: float = Field(0, ge=0, le=1e9, description="longest wait at which jobs are taken; 0: any")
    owner_jobs: int = Field(20_000, ge=1, le=10_000_000, description="most unfinished jobs of one owner")
    batch_queue: float = Field(86_400, ge=1, le=315_360_000, description="how long jobs of a batch may wait")
    batch_bytes: int = Field(268_435_456, ge=1, le=2**40, description="largest batch, in bytes")

    @field_validator("functions", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return [name.strip() for name in value.split(",") if name.strip()]

    @field_validator("functions")
    @classmethod
    def _check_modules(cls, names: list[str]) -> list[str]:
        if not names or not all(_MODULE.fullmatch(name) and not _FILE_NAME.search(name) for name in names):
            raise ValueError("not module names")
        return list(dict.fromkeys(names))

    @field_validator("memory", mode="before")
    @classmethod
    def _read_size(cls, value: object) -> object:
        return parse_size(value) if isinstance(value, str) and value.strip() != "0" else value

    @field_validator("pool")
    @classmethod
    def _check_pool(cls, pool: str) -> str:
        if pool and pool != pools.EVERY and not pools.is_name(pool):
            raise ValueError("not a pool")
        return pool

    @field_validator("labels")
    @classmethod
    def _check_labels(cls, labels: str) -> str:
        return pools.write_labels(pools.read_labels(labels))

    @field_validator("home")
    @classmethod
    def _resolve(cls, home: Path) -> Path:
        return home.expanduser().resolve()

    @field_validator("database_url", "database_direct_url")
    @classmethod
    def _check_database(cls, url: str) -> str:
        if url and urlsplit(url).scheme not in {"postgresql", "postgres"}:
            raise ValueError("not a Postgres URL")
        if url and not _CLEAR_URL.fullmatch(url):
            raise ValueError("not a clear URL")
        return url

    @field_validator("runner_advertise")
    @classmethod
    def _check_advertise(cls, address: str) -> str:
        if address and not address.startswith("unix:/"):
            scheme, _, rest = address.partition("://")
            if scheme != "tcp":
                raise ValueError("not an address")
            _check_host_and_port(rest)
        return address

    @field_validator("runner_metrics")
    @classmethod
    def _check_metrics(cls, address: str) -> str:
        if address:
            _check_host_and_port(address)
        return address

    @field_validator("public_url")
    @classmethod
    def _check_public(cls, url: str) -> str:
        parts = urlsplit(url)
        if url and (
            parts.scheme not in {"http", "https"} or not parts.netloc or parts.query or parts.fragment
        ):
            raise ValueError("not a web address")
        return url.rstrip("/")

    @model_validator(mode="before")
    @classmethod
    def _default_direct(cls, values: dict[str, Any]) -> dict[str, Any]:
        database, direct = (values.get(name) or "" for name in ("database_url", "database_direct_url"))
        return {**values, "database_direct_url": direct or database}

    def with_database(self, url: str) -> Self:
        """A copy that uses the database at `url`, directly too."""
        return self.model_copy(update={"database_url": url, "database_direct_url": url})

    def environment(self) -> dict[str, str]:
        """The `HEADRACE_*` variables that reproduce these settings in a child process."""
        texts = {name: _text(getattr(self, name)) for name in type(self).model_fields}
        return {variable(name): text for name, text in texts.items() if text}

    def masked(self) -> dict[str, str]:
        """Each setting's value as text that may be shown, passwords masked."""
        texts = {name: _text(getattr(self, name)) for name in type(self).model_fields}
        return {name: mask_password(text) if name in _SECRET else text for name, text in texts.items()}


def load_settings(**overrides: Any) -> Settings:
    """Read and check the settings; an override that isn't None wins over environment and `.env`.

    Raises:
        SettingsError: a line for each wrong setting: its variable, its value, and what is allowed.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        settings = Settings(**given)
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(error, given))) from None
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(error) from None
    if settings.database_direct_url and not settings.database_url:
        shown = mask_password(settings.database_direct_url)
        raise SettingsError(
            f"HEADRACE_DATABASE_DIRECT_URL={shown}: allowed is {_ALLOWED['database_direct_url']}"
        )
    return settings


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def origins() -> dict[str, Origin]:
    """Where each setting's value comes from."""
    environment, file = _given_names(os.environ), _given_names(_env_file())
    return {
        name: "environment"
        if variable(name) in environment
        else ".env"
        if variable(name) in file
        else "default"
        for name in Settings.model_fields
    }


def misspelled() -> dict[str, str]:
    """Variables that look like a misspelled setting, with the setting that was probably meant.

    Other unknown `HEADRACE_*` variables are left alone: functions may have settings of their own.
    """
    known = [*(name.upper() for name in Settings.model_fields), *_OTHER_NAMES]
    found: dict[str, str] = {}
    for name in sorted(_given_names(os.environ) | _given_names(_env_file())):
        suffix = name.removeprefix(PREFIX)
        close = difflib.get_close_matches(suffix, known, n=1, cutoff=0.75)
        if suffix not in known and close:
            found[name] = PREFIX + close[0]
    return found


def mask_password(url: str) -> str:
    """The URL with asterisks for its password, wherever that is; when in doubt, all is hidden."""
    if url and not _CLEAR_URL.fullmatch(url):
        scheme, colon, _ = url.rpartition("://")
        return f"{scheme}{colon}***" if scheme.isalnum() else "***"
    return _QUERY_PASSWORD.sub(r"\1***", _ACCOUNT_PASSWORD.sub(r"\1***@", url))


def _check_host_and_port(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and 0 <= int(port) <= 65535):
        raise ValueError("not host:port")


def _text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _explain(error: ValidationError, given: Mapping[str, Any]) -> Iterable[str]:
    sources = {**_env_file(), **os.environ}
    values = {name.upper(): value for name, value in sources.items()}
    for name in dict.fromkeys(str(problem["loc"][0]) for problem in error.errors()):
        value = str(given[name]) if name in given else values.get(variable(name)) or ""
        if not value:  # the default of a wrong one: `database_direct_url`
            continue
        if name == "functions" and _FILE_NAME.search(value):
            yield f"{variable(name)}={value}: these are module names, leave out .py"
            continue
        shown = mask_password(value) if name in _SECRET else value
        if name in _SECRET and value.startswith(("postgresql://", "postgres://")):
            yield f"{variable(name)}={shown}: {_ESCAPE}"
            continue
        yield f"{variable(name)}={shown}: allowed is {_ALLOWED[name]}"


def _given_names(source: Mapping[str, str | None]) -> set[str]:
    return {name.upper() for name, value in source.items() if value and name.upper().startswith(PREFIX)}


def _env_file() -> dict[str, str | None]:
    try:
        return dotenv_values(ENV_FILE) if Path(ENV_FILE).is_file() else {}
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> SettingsError:
    return SettingsError(f"{ENV_FILE} can't be read: {error}")
