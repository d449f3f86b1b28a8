"""The running gateway does what its own OpenAPI document says, whatever is sent to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from harness import postgres
from harness.site import Site, site

CONFIGURATION = Path(__file__).with_name("openapi.toml")
HOOKS = Path(__file__).with_name("openapi_hooks.py")
UNSOUND = ["/fn/fail", "/fn/crash"]
LIMIT_S = 400.0
"""Ten times what the longest run takes: other tests run beside it."""

pytestmark = pytest.mark.timeout(LIMIT_S + 60)


@pytest.fixture(scope="module")
def running(clones: postgres.Clones) -> Iterator[Site]:
    with clones.migrated() as database_url, site(database_url, functions="described_functions") as made:
        yield made


def run(running: Site, *options: str) -> str:
    """Test a site by its document; returns the report of a run that found nothing."""
    command = ["-m", "schemathesis.cli", "--config-file", str(CONFIGURATION)]
    command += ["run", f"{running.url}/openapi.json", "--no-color", *options]
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "HEADRACE_TEST_KEY": running.key, "SCHEMATHESIS_HOOKS": str(HOOKS)},
        cwd=running.folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_operation_keeps_what_the_document_says(running: Site) -> None:
    paths = [*UNSOUND, *(f"{path}/batch" for path in UNSOUND)]
    excluded = [option for path in paths for option in ("--exclude-path", path)]
    report = run(running, *excluded)
    assert "Tested: 27" in report


def test_functions_that_fail_do_it_as_documented(running: Site) -> None:
    included = [option for path in UNSOUND for option in ("--include-path", path)]
    report = run(
        running,
        *included,
        "--phases=fuzzing",
        "--mode=positive",
        "--max-examples=5",
        "--exclude-checks=not_a_server_error",
    )
    assert "Tested: 4" in report


def test_the_served_document_is_valid(running: Site) -> None:
    schemathesis.openapi.from_dict(running.get("/openapi.json").json()).validate()
