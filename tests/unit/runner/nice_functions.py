"""A body beside an event loop and a thread that reads, which tells how nice what it starts is."""

from __future__ import annotations

import subprocess

from pydantic import BaseModel

from headrace import function


class Ask(BaseModel):
    pass


@function()
async def niceness(input: Ask) -> int:
    return int(subprocess.check_output(["nice"]))
