"""Files as inputs and outputs: the name is taken, the feature is not there yet."""

from __future__ import annotations

from typing import Any, NoReturn

from headrace.errors import DeclarationError

_NOT_YET = "File is not yet supported in this version of Headrace; send text or base64 inside the JSON input"


class File:
    """A file that a call receives or returns. Not yet supported: using it fails where it is declared."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise DeclarationError(_NOT_YET)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> NoReturn:
        raise DeclarationError(_NOT_YET)
