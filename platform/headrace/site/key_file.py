"""The file that holds a home's key, readable by its owner alone."""

from __future__ import annotations

import os
from pathlib import Path


def read_key(home: Path) -> str | None:
    """The home's key, or None."""
    try:
        return key_path(home).read_text().strip() or None
    except FileNotFoundError:
        return None


def write_key(home: Path, key: str) -> None:
    """Put a key in the place of any other; a reader finds the old one or the new one, never half."""
    draft = home / ".key.new"
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(key + "\n")
    draft.replace(key_path(home))


def key_path(home: Path) -> Path:
    """Where the key is kept."""
    return home / "key"
