"""Jinja templates out of the package; their style and script are inline, under a strict content policy."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from importlib import resources
from typing import Any, Final, cast

from jinja2 import Environment, FunctionLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

_CODE: Final = re.compile(r"`([^`\n]+)`")


def environment() -> Environment:
    """Templates by name; everything in them is escaped unless it is marked as safe."""
    made = Environment(
        loader=FunctionLoader(_read),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["prose"] = _prose
    made.filters["inline"] = _inline
    shared = cast("dict[str, Any]", made.globals)
    shared["css"] = Markup(_read("page.css"))  # noqa: S704 - our own file
    shared["script"] = Markup(_read("docs.js"))  # noqa: S704 - our own file
    return made


def _read(name: str) -> str:
    return resources.files("headrace").joinpath("templates", name).read_text(encoding="utf-8")


def content_policy() -> str:
    """A content policy that lets our own inline style and script in by their hashes, and nothing else."""
    style_hash, script_hash = (
        b64encode(sha256(text.encode()).digest()).decode() for text in (_read("page.css"), _read("docs.js"))
    )
    return (
        f"default-src 'none'; style-src 'sha256-{style_hash}'; script-src 'sha256-{script_hash}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _inline(text: str) -> Markup:
    """Text in which backquotes mark code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped one step before


def _prose(text: str) -> Markup:
    """Paragraphs, separated by empty lines, in which backquotes mark code."""
    paragraphs = (paragraph.strip() for paragraph in text.split("\n\n"))
    return Markup("").join(Markup("<p>{}</p>").format(_inline(one)) for one in paragraphs if one)
