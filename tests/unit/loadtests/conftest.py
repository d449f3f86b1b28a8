"""The programs of `loadtests` import each other by their bare names, as they are run as scripts."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "loadtests"))
