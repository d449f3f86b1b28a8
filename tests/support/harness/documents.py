"""Tables of the documents, for tests that compare them with the program."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def table(page: str, head: str) -> list[list[str]]:
    """The cells of the table whose head line begins so, its head first."""
    lines = (ROOT / page).read_text().splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith(f"| {head} |"))
    last = next((at for at in range(first, len(lines)) if not lines[at].startswith("|")), len(lines))
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[first:last]]
    assert {len(row) for row in rows} == {len(rows[0])}
    return [rows[0], *rows[2:]]
