"""Makes the helpers of this folder importable, here and in executors."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
