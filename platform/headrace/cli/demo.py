"""`headrace demo`."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

import click
from rich_click import RichCommand

if TYPE_CHECKING:
    from rich.table import Table

    from headrace.client import Client
    from headrace.settings import Settings
    from headrace.site import Started

SENTENCES: Final = (
    "A man plays the guitar on a stage.",
    "Somebody makes music on strings.",
    "Share prices fell this morning.",
    "The stock market lost value today.",
)
_PAIRS: Final = ((0, 1), (2, 3))
"""Which of the sentences mean nearly the same."""

_CALLS: Final = 20


@dataclass(frozen=True, slots=True)
class _Answers:
    """What the calls brought: a vector per sentence, and how long each call took, in seconds."""

    vectors: list[list[float]]
    first_s: float
    later_s: list[float]


@click.command(cls=RichCommand)
def demo() -> None:
    """Start a site, make real calls of `embed`, show the answers, stop everything."""
    import asyncio  # noqa: PLC0415 - `headrace --help` must be quick

    from headrace.settings import load_settings  # noqa: PLC0415

    asyncio.run(_demo(load_settings()))


async def _demo(settings: Settings) -> None:
    import asyncio  # noqa: PLC0415

    from headrace.cli.output import say  # noqa: PLC0415
    from headrace.cli.progress import Progress  # noqa: PLC0415
    from headrace.cli.signals import run_site  # noqa: PLC0415
    from headrace.errors import SetupError  # noqa: PLC0415
    from headrace.site import Site  # noqa: PLC0415

    settings = _on_a_free_port(settings)
    began = time.monotonic()
    with Progress() as progress:

        async def show(started: Started) -> None:
            progress.finish()
            if reason := started.degraded.get("embed"):
                raise SetupError(f"embed can't be served: {reason}; logs: {settings.home / 'logs'}")
            say(f"Headrace serves at {started.url} (ready after {time.monotonic() - began:.1f} s)")
            answers = await asyncio.to_thread(_ask, started)
            _print(answers)

        if not await run_site(Site(settings, progress.tell), show, lambda: progress.tell("stopping")):
            progress.finish()
            progress.tell("stopped")
            raise KeyboardInterrupt
    click.echo("Everything is stopped. `headrace up` serves until Ctrl-C.")


def _on_a_free_port(settings: Settings) -> Settings:
    from headrace.errors import SetupError  # noqa: PLC0415
    from headrace.site.address import check_free, free_port  # noqa: PLC0415

    try:
        check_free(settings.host, settings.port)
    except SetupError:
        return settings.model_copy(update={"port": free_port(settings.host)})
    return settings


def _ask(started: Started) -> _Answers:
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import track  # noqa: PLC0415

    from headrace.client import Client  # noqa: PLC0415

    with Client(started.url, started.key) as client:
        _, first = _timed_call(client, list(SENTENCES[:1]))
        answer, _ = _timed_call(client, list(SENTENCES))
        later = [
            _timed_call(client, [SENTENCES[number % len(SENTENCES)]])[1]
            for number in track(range(_CALLS), f"calling embed {_CALLS} times", console=Console())
        ]
    return _Answers(answer["vectors"], first, later)


def _timed_call(client: Client, texts: list[str]) -> tuple[dict[str, Any], float]:
    began = time.perf_counter()
    answer = client.call("embed", {"texts": texts})
    return answer, time.perf_counter() - began


def _print(answers: _Answers) -> None:
    from rich.console import Console  # noqa: PLC0415

    from headrace.errors import SetupError  # noqa: PLC0415

    first = answers.vectors[0]
    click.echo(f"\n{SENTENCES[0]!r} is a vector of {len(first)} numbers:")
    click.echo("  " + ", ".join(f"{value:.4f}" for value in first[:8]) + ", ...")
    click.echo("\nCosine similarity of each pair of sentences:")
    Console(soft_wrap=True).print(_similarities(answers.vectors))
    typical = sorted(answers.later_s)[len(answers.later_s) // 2]
    click.echo(
        f"The first call took {answers.first_s * 1000:.1f} ms; "
        f"of {len(answers.later_s)} more, half took up to {typical * 1000:.1f} ms."
    )
    if not _makes_sense(answers.vectors):
        raise SetupError("the vectors make no sense: related sentences aren't more alike than unrelated ones")


def _similarities(vectors: list[list[float]]) -> Table:
    from rich.table import Table  # noqa: PLC0415

    table = Table()
    table.add_column("sentence")
    for number in range(len(vectors)):
        table.add_column(str(number + 1), justify="right")
    for number, vector in enumerate(vectors):
        cosines = [f"{cosine(vector, other):.2f}" for other in vectors]
        table.add_row(f"{number + 1} {SENTENCES[number]}", *cosines)
    return table


def _makes_sense(vectors: list[list[float]]) -> bool:
    pairs = {(a, b): cosine(vectors[a], vectors[b]) for a, b in combinations(range(len(vectors)), 2)}
    related = [pairs.pop(pair) for pair in _PAIRS]
    return min(related) > max(pairs.values())


def cosine(a: list[float], b: list[float]) -> float:
    """The cosine of the angle between two vectors."""
    product = sum(x * y for x, y in zip(a, b, strict=True))
    return product / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
