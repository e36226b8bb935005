"""Workers that are stopped while they load: what is deployed is deployed elsewhere, or fails soon.

``SIGSTOP`` stands in for all that makes a process stand still: a debugger, a disk or a network
file system that never answers, a kernel that hangs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from support.agents import AgentProcess, Fleet, await_ready, eventually

STALL_SECONDS = 2.0
BOUND_SECONDS = 3 * STALL_SECONDS + 6
"""To find the stall and to load demo on what is left, on a crowded machine."""

ENVIRON = {"POTLUCK_STALL_SECONDS": str(STALL_SECONDS)}


@contextmanager
def stopping_the_first_worker(agent: AgentProcess) -> Iterator[list[int]]:
    """``SIGSTOP`` the next worker of an agent as soon as it is there."""
    stopped: list[int] = []
    over = threading.Event()
    parent = psutil.Process(agent.pid)
    before = {child.pid for child in parent.children()}

    def watch() -> None:
        while not over.wait(0.001):
            for child in parent.children():
                if child.pid not in before and "potluck.cluster.worker" in child.cmdline():
                    os.kill(child.pid, signal.SIGSTOP)
                    stopped.append(child.pid)
                    return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield stopped
    finally:
        over.set()
        thread.join()


def deploy(agent: AgentProcess) -> subprocess.CompletedProcess[str]:
    return agent.command_line("deploy", "demo", "--context", "256", timeout=60)


def test_a_node_whose_worker_stands_still_is_left_out_and_tried_again_later(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with Fleet(tmp_path_factory.mktemp("stalled")) as fleet:
        agents = fleet.start_all([0, 1], memory_limit="400M", environ=ENVIRON)
        started = time.monotonic()
        with stopping_the_first_worker(agents[1]) as stopped:
            deployed = deploy(agents[0])
        assert deployed.returncode == 0, deployed.stderr
        assert time.monotonic() - started < BOUND_SECONDS
        document = await_ready(agents[0], "demo")
        assert {stage["node_id"] for stage in document["stages"]} == {agents[0].node_id}
        (rejection,) = document["rejections"]
        assert rejection["node_id"] == agents[1].node_id
        assert "its worker made no progress for 2 s while it loaded" in rejection["reason"]
        (pid,) = stopped
        eventually(lambda: not psutil.pid_exists(pid), within=5, what="the worker is ended")
        # Another deployment knows nothing of it, and has both nodes.
        agents[0].ask("undeploy", name="demo")
        assert len(agents[0].deploy(context=256)["stages"]) == 2


def test_where_there_is_nothing_else_the_deployment_fails_and_says_why(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with Fleet(tmp_path_factory.mktemp("stalled")) as fleet:
        (agent,) = fleet.start_all([0], memory_limit="400M", environ=ENVIRON)
        started = time.monotonic()
        with stopping_the_first_worker(agent) as stopped:
            refused = deploy(agent)
        assert refused.returncode == 1
        assert time.monotonic() - started < BOUND_SECONDS
        assert "cpu/native on node 0000000000000000 is left out for now" in refused.stderr
        assert "Traceback" not in refused.stderr + agent.log
        (pid,) = stopped
        assert not psutil.pid_exists(pid)
        assert agent.deployment("demo") is None
        deployed = deploy(agent)
        assert deployed.returncode == 0, deployed.stderr
