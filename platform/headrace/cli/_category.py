"""Categories of errors as people name them."""

from __future__ import annotations

import click


class Category(click.ParamType[str]):
    """The code of a problem, told apart from a slip of the finger before anybody is asked."""

    name = "code"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from headrace.cli._advice import unknown_code  # noqa: PLC0415 - slow to load

        if wrong := unknown_code(value):
            self.fail(wrong, param, ctx)
        return value
