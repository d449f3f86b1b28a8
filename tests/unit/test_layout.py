import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = ("platform", "gpu_runner", "functions", "examples", "loadtests", "sql", "tests", ".ci")
HEAVY = {"torch", "transformers", "sentence_transformers", "numpy"}
LONGEST = 400
WIDEST = 110
WIDE_AND_RELEASED = {"sql/migrations/0002_registry.sql"}
LONG_FOR_A_REASON = {
    "sql/schema.sql": "a dump, made by a program and read by looking things up in it",
}


def code_files(suffix: str) -> Iterator[Path]:
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob(f"*{suffix}")):
            if "__pycache__" not in path.parts:
                yield path


def python(*arguments: str, **environment: str) -> str:
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={"PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


IS_STANDARD = """
import platform, sysconfig
from pathlib import Path
assert Path(platform.__file__).parent == Path(sysconfig.get_path("stdlib")), platform.__file__
assert platform.python_version()
"""


def test_platform_is_the_standard_library_in_the_checkout() -> None:
    python("-c", IS_STANDARD)


def test_platform_is_the_standard_library_under_python_m(tmp_path: Path) -> None:
    (tmp_path / "asks_platform.py").write_text(IS_STANDARD)
    python("-m", "asks_platform", PYTHONPATH=str(tmp_path))


def test_platform_is_the_standard_library_in_a_script_at_the_top_of_the_checkout(tmp_path: Path) -> None:
    # A script's folder comes first on the path, as PYTHONPATH does; nothing is written into the checkout.
    (tmp_path / "script.py").write_text(IS_STANDARD)
    python(str(tmp_path / "script.py"), PYTHONPATH=str(ROOT))


def test_platform_is_the_standard_library_under_pytest(tmp_path: Path) -> None:
    body = "".join(f"    {line}\n" for line in IS_STANDARD.strip().splitlines())
    (tmp_path / "test_asks.py").write_text(f"def test_platform():\n{body}")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    shown = python("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path))
    assert "1 passed" in shown


def test_platform_is_a_source_root_and_no_package() -> None:
    assert (ROOT / "platform" / "headrace" / "__init__.py").is_file()
    assert not (ROOT / "platform" / "__init__.py").exists()
    assert [path.name for path in (ROOT / "platform").iterdir() if path.name != "__pycache__"] == ["headrace"]


@pytest.mark.parametrize("name", ["model", "function"])
def test_no_module_hides_a_public_name(name: str) -> None:
    package = ROOT / "platform" / "headrace"
    assert not (package / f"{name}.py").exists()
    assert not (package / name).exists()


def test_functions_import_no_heavy_library_until_they_are_used() -> None:
    names = [path.stem for path in code_files(".py") if path.parent == ROOT / "functions"]
    modules = [f"functions.{name}" for name in names if name != "__init__"]
    assert modules
    heavy = python("-c", f"import sys, {', '.join(modules)}; print(sorted({HEAVY} & set(sys.modules)))")
    assert heavy == "[]\n"


def test_files_stay_short() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for suffix in (".py", ".sql")
        for path in code_files(suffix)
    }
    assert len(lengths) > 50, "the search found too little to mean anything"
    too_long = {name for name, lines in lengths.items() if lines > LONGEST}
    assert too_long == set(LONG_FOR_A_REASON)


def test_lines_of_sql_stay_short() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in code_files(".sql")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > WIDEST
    ]
    exempt = {"sql/schema.sql", *WIDE_AND_RELEASED}
    assert [where for where in long if where.rsplit(":", 1)[0] not in exempt] == []


def test_python_holds_no_sql() -> None:
    statement = re.compile(r"\"\s*(SELECT .+ FROM|INSERT INTO|UPDATE \w+ SET|DELETE FROM|CREATE TABLE)\b")
    product = [path for path in code_files(".py") if path.relative_to(ROOT).parts[0] not in {"tests", ".ci"}]
    assert product
    assert [str(path) for path in product if statement.search(path.read_text())] == []


def test_links_inside_the_package_lead_to_the_top_level_folders() -> None:
    for name in ("sql", "templates"):
        assert (ROOT / "platform" / "headrace" / name).resolve() == ROOT / name


def test_the_pinned_versions_name_each_package_once() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", pin) for pin in pins)
    names = [re.sub(r"[._]", "-", pin.split("==")[0].lower()) for pin in pins]
    assert names == sorted(set(names))
    assert "torch==2.13.0" in pins
