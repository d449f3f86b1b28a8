"""The documents say what the program does, wherever that can be compared."""

import importlib.util
import re
import sys
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client import CollectorRegistry

from gpu_runner.metrics import RunnerMetrics
from gpu_runner.supervisor import Supervisor
from headrace.audit import ACTIONS
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.problem_kinds import KINDS
from headrace.link import frames
from headrace.sdk import Function
from headrace.settings import Settings, variable

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def text(name: str) -> str:
    return (ROOT / name).read_text()


def table(page: str, head: str) -> list[list[str]]:
    """The cells of the table whose head line begins so."""
    lines = text(page).split(f"\n| {head} |", 1)[1].splitlines()[2:]
    rows = lines[: next((at for at, line in enumerate(lines) if not line.startswith("|")), len(lines))]
    return [[cell.strip().strip("`") for cell in row.strip("|").split(" | ")] for row in rows]


def test_every_problem_is_listed_with_its_status_and_title() -> None:
    listed = {code: (int(status), title) for code, status, title in table("docs/http.md", "code")}
    assert listed == {code: (kind.status, kind.title) for code, kind in KINDS.items()}


def shown(default: object) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default) or "empty"


def test_every_setting_is_listed_with_its_default() -> None:
    listed = {name: default for name, default, _ in table("docs/settings.md", "setting")}
    defaults = {
        variable(name): ",".join(field.default) if name == "functions" else field.default
        for name, field in Settings.model_fields.items()
    }
    assert listed == {name: shown(default) for name, default in defaults.items()}


def test_every_frame_is_described_with_its_fields() -> None:
    rows = table("docs/link-protocol.md", "frame")
    fields = {names: listed.split(", ") for names, _, listed, _ in rows}
    for frame in get_args(frames.Frame):
        tag = frame.__struct_config__.tag
        assert f"`{tag}`" in text("docs/link-protocol.md")
        if tag in fields:
            assert fields[tag] == list(frame.__struct_fields__)
    assert text("docs/link-protocol.md").startswith(f"# The direct link, version {frames.VERSION}\n")


def series(registry: CollectorRegistry) -> set[str]:
    families = list(registry.collect())
    return {f"{one.name}_total" if one.type == "counter" else one.name for one in families}


def test_every_metric_is_listed() -> None:
    listed = set(re.findall(r"`(headrace_[a-z_]+)", text("docs/operations.md")))
    runner = RunnerMetrics(["embed"])
    runner.watch(Supervisor({}, runner, 0.25, lambda: None))
    assert listed == series(GatewayMetrics().registry) | series(runner.registry)


def test_every_audited_action_is_listed() -> None:
    listed = [re.findall(r"[a-z]+\.[a-z]+", actions) for actions, _ in table("docs/operations.md", "action")]
    assert [action for actions in listed for action in actions] == list(ACTIONS)


def test_every_test_that_proves_a_promise_exists() -> None:
    named = set(re.findall(r"`(tests/[a-z_/]+\.py)`", text("docs/guarantees.md")))
    assert named
    assert {name for name in named if not (ROOT / name).is_file()} == set()


BLOCKS = {
    f"{page.stem}_{number}": block
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
}


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_functions_in_documents_can_be_declared(name: str, tmp_path: Path) -> None:
    module_name = f"documented_{name.lower().replace('-', '_')}"
    path = tmp_path / f"{module_name}.py"
    path.write_text(BLOCKS[name])
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
        assert any(isinstance(value, Function) for value in vars(module).values())
    finally:
        del sys.modules[module_name]


def test_links_between_documents_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if not target.startswith("https://"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_paths_in_documents_exist() -> None:
    named = re.compile(
        r"`((?:platform|gpu_runner|functions|examples|sql|templates|loadtests|deploy|tests|docs|\.ci)/[\w./@-]*)`"
    )
    for page in PAGES:
        for path in named.findall(page.read_text()):
            assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_every_make_target_in_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    quoted = r"`make ([a-z-]+)`|^make ([a-z-]+)"
    named = {"".join(one) for page in PAGES for one in re.findall(quoted, page.read_text(), re.MULTILINE)}
    assert {"up", "demo", "test"} <= named <= targets


def test_every_command_in_documents_exists() -> None:
    from headrace.cli import commands  # noqa: PLC0415 - only this test needs it

    known = set(commands.list_commands(None))  # type: ignore[arg-type]
    for page in PAGES:
        for command in re.findall(r"`headrace ([a-z]+)", page.read_text()):
            assert command in known, f"{page.name}: headrace {command}"
