"""Workers that stand still, while they load or in a step, and workers that are merely slow.

``SIGSTOP`` stands in for all that makes a process stand still: a debugger, a disk or a network
file system that never answers, a kernel that hangs.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

import psutil
import pytest
from support.cluster.agents import AgentProcess, Fleet, await_ready, no_end
from support.processes.waiting import done_within, eventually

STALL_SECONDS = 2.0
BOUND_SECONDS = 3 * STALL_SECONDS + 6
"""To find the stall and to load demo on what is left, on a crowded machine."""

NOTICED_SECONDS = 3.0
"""For a stopped worker to be found and ended, of a deployment whose steps take milliseconds."""

LONG_PROMPT = "a tale of two mills " * 250
"""Nearly the whole context of demo."""

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
    return agent.command_line("deploy", "demo", "--context", "256", "--for", "memory", timeout=60)


@pytest.mark.timing
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
        assert "while it loaded" in rejection["reason"]
        (pid,) = stopped
        eventually(lambda: not psutil.pid_exists(pid), within=5, what="the worker is ended")
        # Another deployment knows nothing of it, and has both nodes.
        agents[0].ask("undeploy", name="demo")
        assert len(agents[0].deploy(context=256)["stages"]) == 2


def test_where_there_is_nothing_else_the_deployment_fails_and_says_why(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with Fleet(tmp_path_factory.mktemp("stalled")) as fleet:
        # By its usual settings: the kernel says that it was stopped.
        (agent,) = fleet.start_all([0], memory_limit="400M")
        with done_within(BOUND_SECONDS), stopping_the_first_worker(agent) as stopped:
            refused = deploy(agent)
        assert refused.returncode == 1
        assert f"stage 0 on node {platform.node()}: its worker was stopped" in refused.stderr
        assert "Traceback" not in refused.stderr + agent.log
        (pid,) = stopped
        assert not psutil.pid_exists(pid)
        assert agent.deployment("demo") is None
        deployed = deploy(agent)
        assert deployed.returncode == 0, deployed.stderr


def test_a_layout_with_a_stage_that_stands_still_fails_and_says_why(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Although all layers would fit next to the stage that the other worker holds."""
    with Fleet(tmp_path_factory.mktemp("stalled")) as fleet:
        agents = fleet.start_all([0, 1], memory_limit="400M", environ=ENVIRON)
        layout = ",".join(f"{agent.node_id}=6" for agent in agents)
        command = ("deploy", "demo", "--context", "256", "--layout", layout)
        with stopping_the_first_worker(agents[1]):
            refused = agents[0].command_line(*command, timeout=60)
        assert refused.returncode == 1
        assert f"stage 1 on node {agents[1].node_id}: its worker " in refused.stderr
        assert "while it loaded" in refused.stderr
        assert "Traceback" not in refused.stderr + agents[0].log
        assert agents[0].deployment("demo") is None
        deployed = agents[0].command_line(*command, timeout=60)
        assert deployed.returncode == 0, deployed.stderr
        nodes = [stage["node_id"] for stage in await_ready(agents[0], "demo")["stages"]]
        assert nodes == [agent.node_id for agent in agents]


def stream(agent: AgentProcess, prompt: str, *, max_tokens: int) -> Iterator[str]:
    answer = agent.client().completions.create(
        model="demo",
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
        logit_bias=no_end(),
    )
    for chunk in answer:
        yield chunk.choices[0].text


@contextmanager
def hogs(num: int, cores: set[int]) -> Iterator[None]:
    """Processes that use all that is left of ``cores``."""
    code = f"import os; os.sched_setaffinity(0, {cores!r})\nwhile True: pass"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(num)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def confine(agent: AgentProcess, cores: set[int]) -> None:
    """All threads of an agent and of its children run on ``cores``."""
    parent = psutil.Process(agent.pid)
    for process in (parent, *parent.children(recursive=True)):
        for thread in process.threads():
            os.sched_setaffinity(thread.id, cores)


@pytest.mark.parametrize("index", [0, 1])
def test_a_worker_that_is_stopped_while_it_decodes_is_lost_within_seconds(
    tmp_path_factory: pytest.TempPathFactory, index: int
) -> None:
    with Fleet(tmp_path_factory.mktemp("stalled")) as fleet:
        agents = fleet.start_all([0, 1], memory_limit="400M")
        document = agents[0].deploy(context=2048)
        node_ids = [stage["node_id"] for stage in document["stages"]]
        host = next(agent for agent in agents if agent.node_id == node_ids[index])
        (pid,) = host.workers()
        received: list[float] = []

        def read() -> None:
            for _ in stream(agents[0], "Once upon a time", max_tokens=1900):
                received.append(time.monotonic())

        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read)
            eventually(lambda: len(received) > 50, within=20, what="it decodes")
            os.kill(pid, signal.SIGSTOP)
            seconds = eventually(
                lambda: not psutil.pid_exists(pid),
                within=NOTICED_SECONDS,
                what="the loss is noticed",
            )
            reading.result(timeout=120)
        pause = max(after - before for before, after in pairwise(received))
        print(f"noticed after {seconds:.1f} s; the longest pause took {pause:.1f} s")
        assert len(received) > 1800  # a few tokens are parts of characters
        document = await_ready(agents[0], "demo")
        assert {stage["node_id"] for stage in document["stages"]} == {node_ids[1 - index]}
        (rejection,) = document["rejections"]
        assert (
            f"stage {index} on node {host.node_id}: its worker was stopped" in (rejection["reason"])
        )


def test_a_worker_that_is_stopped_for_a_moment_is_kept(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with Fleet(tmp_path_factory.mktemp("stalled")) as fleet:
        (agent,) = fleet.start_all([0], memory_limit="400M")
        agent.deploy(context=2048)
        (pid,) = agent.workers()
        tokens = stream(agent, "Once upon a time", max_tokens=300)
        for _ in range(10):
            next(tokens)
        for _ in range(3):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(1.2)  # the step is overdue, and its stage is being looked at
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.2)
        assert sum(1 for _ in tokens) > 200
        assert agent.workers() == {pid}


@contextmanager
def throttled(pid: int, *, runs: float, rests: float) -> Iterator[None]:
    """A process has a turn of ``runs`` seconds after every ``rests``, as between many others."""
    over = threading.Event()

    def throttle() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(rests)
            os.kill(pid, signal.SIGCONT)
            time.sleep(runs)

    thread = threading.Thread(target=throttle)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_long_prefill_on_a_crowded_core_is_not_lost(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    core = {min(os.sched_getaffinity(0))}
    with Fleet(tmp_path_factory.mktemp("stalled")) as fleet:
        agents = fleet.start_all([0, 1], memory_limit="400M")
        agents[0].deploy(context=2048)
        workers = [agent.workers() for agent in agents]
        confine(agents[1], core)
        started = time.monotonic()
        with hogs(8, core):
            tokens = list(stream(agents[0], LONG_PROMPT, max_tokens=12))
        print(f"with hogs: a prompt and 12 tokens took {time.monotonic() - started:.1f} s")
        assert len(tokens) >= 12
        (pid,) = workers[1]
        started = time.monotonic()
        with throttled(pid, runs=0.012, rests=0.5):
            half = LONG_PROMPT[: len(LONG_PROMPT) // 2]
            tokens = list(stream(agents[0], "Another. " + half, max_tokens=2))
        seconds = time.monotonic() - started
        print(f"with hardly a turn: half a prompt and 2 tokens took {seconds:.1f} s")
        assert seconds > NOTICED_SECONDS
        assert [agent.workers() for agent in agents] == workers
        assert "lost" not in agents[0].log
