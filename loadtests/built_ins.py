"""Each built-in function over HTTP, against its library alone in one process: how much of it is left.

    python loadtests/built_ins.py [--only NAME ...] [--clients 32] [--seconds 8] [--rounds 5] [--threads N]
                                  [--report FILE]

One function after the other: a site that serves only its module is started, and beside it a process that uses
the bare library in its best way, with as many threads. In each round these two take turns; whoever isn't
measured is idle. Clients send the next call when the last one is answered:

- `embed`: a text of 14 to 26 words, against `SentenceTransformer.encode` in the best of batches of 8, 32, 64;
- `summarize`: an article of 15 sentences, against the function's own steps, as there is no library;
- `extract`: an English sentence, against `nlp.pipe` in batches of 32;
- `generate`: 32 tokens, read as they are streamed, against transformers' continuous batching with as many
  generations at once, in rounds three times as long.

The site shares the cores with its clients, gateway and Postgres, and the library has them for itself. Compare
figures of one round; where others use the machine too, compare CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import generation
import psutil
import uvloop
from batching import drive, request, texts
from built_ins_work import Alone, articles, sentences
from call_cost import cpu_seconds, free_port, site
from generation_figures import MAX_TOKENS, prompts

from gpu_runner.executor.device import THREAD_VARIABLES, set_thread_variables
from headrace.client import Client
from headrace.cores import threads_each

AIM: Final = 0.85
"""Of the library's rate, with 32 clients."""

_WARM_UP_S: Final = 3.0
_WARM_UPS: Final = 5  # calls, one after the other: the first loads the model
_LONGER: Final = 3  # rounds of `generate`: 32 prompts that come at once take seconds to read
_HERE: Final = Path(__file__).parent


class Load(NamedTuple):
    """How many clients there are, how long a round is, and with how many threads both sides compute."""

    clients: int
    seconds: float
    threads: int


class Rate(NamedTuple):
    """How fast it went.

    Args:
        per_s: what the function is measured by: calls, or tokens.
        cpu_ms: CPU time of each; of a site, over all its processes.
        errors: calls that were not answered 200.
    """

    per_s: float
    cpu_ms: float
    errors: int = 0


class Round(NamedTuple):
    """The two in turn."""

    bare: Rate
    served: Rate

    @property
    def share(self) -> float:
        """What is left of the library's rate."""
        return self.served.per_s / self.bare.per_s


class Found(NamedTuple):
    """All rounds of a function.

    Args:
        unit: what is counted.
        way: how the library was used.
    """

    name: str
    unit: str
    way: str
    rounds: list[Round]

    @property
    def share(self) -> float:
        """The median of the rounds."""
        return statistics.median(one.share for one in self.rounds)


def given() -> dict[str, list[object]]:
    """What clients ask each function, but for `generate`."""
    return {
        "embed": [{"texts": [text]} for text in texts()],
        "summarize": [{"text": text} for text in articles()],
        "extract": [{"texts": [text]} for text in sentences()],
    }


NAMES: Final = (*given(), "generate")


# ---------------------------------------------------------------------- one function


def measure(name: str, load: Load, rounds: int) -> Found:
    """So many rounds of one function."""
    return _generate(load, rounds) if name == "generate" else _calls(name, load, rounds)


def _calls(name: str, load: Load, rounds: int) -> Found:
    with _served(name) as (port, root, key), _alone(name, load.threads) as run_alone:
        asked = given()[name]
        client = Client(f"http://127.0.0.1:{port}", key)
        for one in asked[:_WARM_UPS]:
            client.call(name, one)
        requests = [request(port, key, name, one) for one in asked]

        def served() -> Rate:
            uvloop.run(drive(port, requests, load.clients, _WARM_UP_S))
            before = cpu_seconds(root)
            tally = uvloop.run(drive(port, requests, load.clients, load.seconds))
            answered = max(1, len(tally.seconds) - tally.errors)
            cpu_ms = (cpu_seconds(root) - before) / answered * 1000
            return Rate(answered / load.seconds, cpu_ms, tally.errors)

        ways: list[str] = []

        def bare() -> Rate:
            rate, cpu_ms, way = run_alone(load.seconds)
            ways.append(way)
            return Rate(rate, cpu_ms)

        found = _in_turn(name, bare, served, rounds)
        return Found(name, "calls", max(ways, key=ways.count), found)


def _generate(load: Load, rounds: int) -> Found:
    seconds = _LONGER * load.seconds
    with (
        _served("generate") as (port, root, key),
        generation.alone(load.clients, load.threads) as run_alone,
    ):
        clients = [Client(f"http://127.0.0.1:{port}", key) for _ in range(load.clients)]
        clients[0].call("generate", {"prompt": next(prompts), "max_tokens": 1})

        def served() -> Rate:
            return _of(generation.through_platform(root, clients, seconds))

        found = _in_turn("generate", lambda: _of(run_alone(seconds)), served, rounds)
        way = f"continuous batching, {load.clients} generations of {MAX_TOKENS} tokens"
        return Found("generate", "tokens", way, found)


def _of(figures: generation.Figures) -> Rate:
    return Rate(figures.rate, 1000 / figures.per_cpu_s)


def _in_turn(name: str, bare: Callable[[], Rate], served: Callable[[], Rate], rounds: int) -> list[Round]:
    found: list[Round] = []
    for number in range(1, rounds + 1):
        found.append(one := Round(bare(), served()))
        print(
            f"{name}, round {number}: alone {_told(one.bare)}; served {_told(one.served)}, "
            f"{one.served.errors} errors; {one.share:.0%}",
            flush=True,
        )
    return found


def _told(rate: Rate) -> str:
    return f"{rate.per_s:.1f}/s, {rate.cpu_ms:.2f} ms of CPU"


# ---------------------------------------------------------------------- both sides


@contextmanager
def _served(name: str) -> Generator[tuple[int, psutil.Process, str]]:
    """A site with one executor and this function's module, in which calls wait instead of being refused."""
    port = free_port()
    with site(port, f"functions.{name}", HEADRACE_BRIEF_WAIT="10", HEADRACE_DEVICE="cpu") as (root, key):
        yield port, root, key


@contextmanager
def _alone(name: str, threads: int) -> Generator[Callable[[float], Alone]]:
    """The library in a process of its own, which runs a round when it is called."""
    command = [sys.executable, str(_HERE / "built_ins_work.py"), name, str(threads)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asking, answers = process.stdin, process.stdout
        assert answers.readline() == "ready\n", "the library can't be loaded"

        def run(seconds: float) -> Alone:
            print(seconds, file=asking, flush=True)
            return Alone(*json.loads(answers.readline()))

        yield run


# ---------------------------------------------------------------------- what is said of it


def table(found: Sequence[Found]) -> list[str]:
    """Lines of Markdown: medians of the rounds, and the range of shares."""
    lines = [
        "| | alone | CPU each | served | CPU each | share, median | shares of the rounds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in found:
        sides = " | ".join(
            f"{statistics.median(rate.per_s for rate in side):.0f} {one.unit}/s | "
            f"{statistics.median(rate.cpu_ms for rate in side):.2f} ms"
            for side in ([turn.bare for turn in one.rounds], [turn.served for turn in one.rounds])
        )
        shares = ", ".join(f"{turn.share:.0%}" for turn in one.rounds)
        lines.append(f"| `{one.name}` | {sides} | {one.share:.0%} | {shares} |")
    return lines


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description="built-in functions over HTTP and their libraries alone")
    arguments.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    arguments.add_argument("--clients", type=int, default=32)
    arguments.add_argument("--seconds", type=float, default=8.0)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument(
        "--threads", type=int, default=os.environ.get(THREAD_VARIABLES[0], threads_each(1))
    )
    arguments.add_argument("--report", type=Path, help="a file for the table, in Markdown")
    options = arguments.parse_args()
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(options.threads)))  # for both sides alike
    set_thread_variables(options.threads)
    os.environ["PYTHONPATH"] = str(_HERE.parent)  # the other processes find functions there
    load = Load(options.clients, options.seconds, options.threads)
    about = (
        f"{load.clients} clients, {load.threads} threads, {options.rounds} rounds of {load.seconds:g} s; "
        f"load of the machine at the start: {os.getloadavg()[0]:.2f}"
    )
    print(about, flush=True)
    found = [measure(name, load, options.rounds) for name in options.only]
    lines = table(found)
    for one in found:
        lines.append(("\n" if one is found[0] else "") + f"- `{one.name}` alone: {one.way}.")
    below = [one.name for one in found if one.share < AIM]
    lines += ["", f"Below {AIM:.0%}: {', '.join(below) or 'none'}."]
    print("\n".join(lines))
    if options.report is not None:
        options.report.write_text("\n".join([about + ".", "", *lines]) + "\n")


if __name__ == "__main__":
    main()
