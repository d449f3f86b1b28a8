from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import headrace

PUBLIC = [
    *("function", "model", "uses", "Function", "Budget", "Limits", "Batch", "Cost", "Call", "Device"),
    *("FOREVER", "File", "InvalidInput", "InvocationError", "PermanentError", "TransientError"),
]


def test_exactly_these_names_are_public():
    assert sorted(headrace.__all__) == sorted([*PUBLIC, "__version__"])
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None


def test_no_submodule_hides_a_public_name():
    assert callable(headrace.function)
    assert callable(headrace.model)


def test_the_version_is_the_distributions():
    assert headrace.__version__ == version("headrace")


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(headrace, "worker")


def test_importing_it_loads_no_heavy_library():
    heavy = "{'pydantic', 'pydantic_core', 'psycopg', 'litestar', 'torch', 'importlib.metadata'}"
    code = f"import sys, headrace; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
