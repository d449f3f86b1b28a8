"""In a runner, executors come after all else; what keeps calls answered and executors watched doesn't."""

from __future__ import annotations

import os

import psutil
from harness.postgres import Clones
from harness.site import site


def test_a_runners_executors_are_nice_and_nothing_else_of_it(clones: Clones) -> None:
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    with clones.migrated() as url, site(url, runners=0) as served:
        runner = served.start_runner(
            HEADRACE_FUNCTIONS="site_functions", HEADRACE_EXECUTORS="2", HEADRACE_EXECUTOR_NICE="5"
        )
        served.wait_ready()
        family = runner.descendants()
        (server,) = {one.ppid() for one in family} - {runner.pid}
        executors = {one.pid for one in family if one.ppid() == server}

        assert len(executors) == 2
        assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in executors} == {min(ours + 5, 19)}
        others = [runner.pid, *({one.pid for one in family} - executors)]
        assert runner.warden().pid in others
        for pid in others:
            threads = psutil.Process(pid).threads()
            assert {os.getpriority(os.PRIO_PROCESS, thread.id) for thread in threads} == {ours}
