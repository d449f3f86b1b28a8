"""How runners are named, and how what runs there is shown."""

from __future__ import annotations

import msgspec
import pytest

from headrace.cli._runners import named
from headrace.cli._stacks import shortened
from headrace.cli._standing import described
from headrace.domain import RunnerInfo
from headrace.errors import HeadraceError
from headrace.runner_requests import Standing

FIRST = RunnerInfo("1aaaaaaa-0000-4000-8000-0000000000b1", None, "default", {})
SECOND = RunnerInfo("1bbbbbbb-0000-4000-8000-0000000000a2", None, "default", {})


@pytest.mark.parametrize("name", [FIRST.runner_id, "1a", "1AAAAAAA", "..000000b1", "000000b1", "b1"])
def test_a_runner_is_named_by_a_part_of_its_id(name: str) -> None:
    assert named([FIRST, SECOND], name) is FIRST


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("1", f"'1' may be any of {FIRST.runner_id}, {SECOND.runner_id}: give more of the id"),
        ("2f", f"there is no runner '2f'; those that live: {FIRST.runner_id}, {SECOND.runner_id}"),
        ("..", f"there is no runner '..'; those that live: {FIRST.runner_id}, {SECOND.runner_id}"),
    ],
)
def test_a_name_that_fits_none_or_several_is_refused_with_those_there_are(name: str, said: str) -> None:
    with pytest.raises(HeadraceError) as raised:
        named([FIRST, SECOND], name)
    assert str(raised.value) == said


def test_no_runner_is_named_where_none_lives() -> None:
    with pytest.raises(HeadraceError, match=r"^there is no runner '1a': no runner lives$"):
        named([], "1a")


LIB = "/usr/lib/python3.11"
BODY = """\
Current thread 0x00007f30873fd6c0 (most recent call first):
  File "/srv/shop.py", line 32 in rest
  File "/srv/shop.py", line 27 in total
  File "/opt/gpu_runner/executor/pipeline.py", line 63 in perform
  File "/opt/gpu_runner/executor/main.py", line 292 in _perform
  File "<string>", line 1 in <module>"""
READER = f"""\
Thread 0x00007f30883ff6c0 (most recent call first):
  File "/opt/gpu_runner/executor/channel.py", line 59 in _read
  File "/opt/gpu_runner/executor/main.py", line 171 in _read
  File "{LIB}/threading.py", line 982 in run"""
IDLE_LOOP = f"""\
Thread 0x00007f30883ff6c1 (most recent call first):
  File "{LIB}/selectors.py", line 468 in select
  File "{LIB}/asyncio/base_events.py", line 607 in run_forever
  File "/opt/gpu_runner/executor/main.py", line 164 in _run_loop
  File "{LIB}/threading.py", line 982 in run"""
IDLE_POOL = f"""\
Thread 0x00007f30883ff6c2 (most recent call first):
  File "{LIB}/concurrent/futures/thread.py", line 81 in _worker
  File "{LIB}/threading.py", line 982 in run"""
COROUTINE = f"""\
Thread 0x00007f30883ff6c3 (most recent call first):
  File "/srv/shop.py", line 40 in spin
  File "/opt/gpu_runner/executor/pipeline.py", line 75 in perform_async
  File "/opt/gpu_runner/executor/main.py", line 301 in _perform_async
  File "{LIB}/asyncio/events.py", line 84 in _run"""
JOINED = BODY.replace("pipeline.py", "batch.py")
STREAM = BODY.replace(
    '  File "/opt/gpu_runner/executor/pipeline.py"',
    '  File "/opt/gpu_runner/executor/streaming.py", line 53 in drain\n'
    '  File "/opt/gpu_runner/executor/pipeline.py"',
)
OF_A_BODY = f"""\
Thread 0x00007f30883ff6c4 (most recent call first):
  File "/srv/shop.py", line 50 in background
  File "{LIB}/threading.py", line 982 in run"""
HEAD = "A function (most recent call first):\n"
REST = '  File "/srv/shop.py", line 32 in rest\n  File "/srv/shop.py", line 27 in total'
SPIN = '  File "/srv/shop.py", line 40 in spin'


def hidden(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)} of the executor itself not shown: --all shows everything."


@pytest.mark.parametrize(
    ("threads", "shown"),
    [
        ([BODY], [HEAD + REST]),
        ([JOINED], [HEAD + REST]),
        ([STREAM], [HEAD + REST]),
        ([READER, IDLE_LOOP, IDLE_POOL, BODY], [HEAD + REST, hidden(3)]),
        ([COROUTINE, READER], [HEAD + SPIN, hidden(1)]),
        ([OF_A_BODY, BODY], [OF_A_BODY, HEAD + REST]),
        (["Fatal Python error: x", BODY], ["Fatal Python error: x", HEAD + REST]),
        ([], []),
    ],
)
def test_stacks_are_shortened_to_what_functions_do(threads: list[str], shown: list[str]) -> None:
    assert shortened("\n\n".join(threads) + "\n") == "\n\n".join(shown)


STANDING = Standing(
    job_id="0199e0a0-0000-7000-8000-000000000001",
    function="total",
    attempt=2,
    path="direct",
    body="main",
    phase="running",
    running_s=4.25,
    soft_s=-1.0,
    deadline_s=120.0,
    kill_s=8.0,
    executor=1,
    pid=77,
    stop="its soft limit of 3 s was used up",
    stopped_s=1.0,
    interrupts=5,
    interrupted_s=0.75,
    process="R",
    threads=1,
    wchan="",
    cpu=0.98,
    stacks=f"{BODY}\n",
    why="It goes on and on, and nobody knows why.",
)
PAGE = f"""\
direct call {STANDING.job_id}: total, attempt 2

It goes on and on, and nobody knows why.

where     runner ..000000b1, executor 1, process 77, the main thread
runs      for 4.2 s
limits    soft limit 1.0 s ago, deadline in 120 s, killed in 8.0 s
stop      asked to end 1.0 s ago, as its soft limit of 3 s was used up; interrupted 0.8 s ago
process   running on a core, 1 thread, 98% of a core

{HEAD}{REST}"""


def test_a_running_call_is_one_page() -> None:
    assert described(FIRST.runner_id, STANDING) == PAGE


def test_everything_is_shown_where_it_is_asked_for() -> None:
    assert described(FIRST.runner_id, STANDING, every=True) == PAGE.replace(HEAD + REST, BODY)


def test_sentences_fit_a_terminal() -> None:
    page = described(FIRST.runner_id, STANDING, 30)
    assert "It goes on and on, and nobody\nknows why.\n" in page


def test_names_of_others_cannot_steer_a_terminal() -> None:
    standing = msgspec.structs.replace(STANDING, stacks=BODY.replace("rest", "re\x1b[2Jst"))
    page = described(FIRST.runner_id, standing)
    assert "in re\\x1b[2Jst" in page
    assert "\x1b" not in page


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            {"stacks": ""},
            "The stacks didn't come: it blocks the signal that asks for them, or can't do anything.",
        ),
        ({"wchan": "do_futex", "process": "S"}, "process   sleeping in do_futex, 1 thread, 98% of a core"),
        ({"signals_blocked": True}, "signals   blocked or ignored: it can't be interrupted"),
        ({"body": "async"}, "Where an async body awaits can't be seen: it is on no thread's stack then."),
        ({"path": "job"}, f"job {STANDING.job_id}: total, attempt 2"),
    ],
)
def test_what_else_a_page_says(facts: dict[str, object], said: str) -> None:
    assert said in described(FIRST.runner_id, msgspec.structs.replace(STANDING, **facts)).splitlines()


def test_a_call_that_waits_is_told_so_without_a_stack() -> None:
    waiting = msgspec.structs.replace(STANDING, phase="waiting", executor=None, pid=None, stacks="", stop="")
    assert described(FIRST.runner_id, waiting).splitlines()[4:] == [
        "where     runner ..000000b1",
        "waits     for 4.2 s",
        "limits    deadline in 120 s",
    ]
