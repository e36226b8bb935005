"""kill -9 of each kind of process: quick errors, nothing left, the next request served.

One cluster for the whole module: agent 0 holds the deployment ``beside`` alone, agent 1 coordinates
``demo`` over all, agent 2 serves no clients, agent 3 has no memory for stages and is a gateway
only. Each test leaves the cluster whole again.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import openai
import psutil
import pytest
from support.cluster.agents import AgentProcess, Document, Fleet, await_ready, no_end
from support.process_facts import has_ended
from support.processes.orphans import LIKE_A_WORKER, Orphan
from support.processes.waiting import eventually

from potluck import Model
from potluck.cluster.agent.worker_notes import ProcessFacts, WorkerNotes
from potluck.local.model import SamplingOptions

PROMPT = "Once upon a time"


@dataclass(slots=True)
class Stream:
    """A client's stream on a thread of its own: its text, and how it ended."""

    text: str = ""
    error: openai.APIError | None = None
    ended_at: float | None = None
    started: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    @property
    def is_live(self) -> bool:
        return self.ended_at is None

    def end(self, *, within: float) -> None:
        """Wait for it to end by itself."""
        assert self.thread is not None
        self.thread.join(within)
        assert self.ended_at is not None, "the stream goes on"


@contextlib.contextmanager
def streaming(agent: AgentProcess, model: str = "demo", max_tokens: int = 2000) -> Iterator[Stream]:
    """A stream that has begun."""
    stream = Stream()
    leave = threading.Event()

    def read() -> None:
        try:
            with (
                agent.client() as client,
                client.completions.create(
                    model=model,
                    prompt=PROMPT,
                    max_tokens=max_tokens,
                    temperature=0,
                    logit_bias=no_end(),
                    stream=True,
                ) as chunks,
            ):
                for chunk in chunks:
                    stream.text += chunk.choices[0].text
                    stream.started.set()
                    if leave.is_set():
                        break
        except openai.APIError as error:
            stream.error = error
        finally:
            stream.ended_at = time.monotonic()
            stream.started.set()

    stream.thread = threading.Thread(target=read)
    stream.thread.start()
    try:
        assert stream.started.wait(20)
        assert stream.is_live, stream.error
        yield stream
    finally:
        leave.set()
        stream.thread.join()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("killed")) as fleet:
        first = fleet.start(0, memory_limit="400M").await_up()
        first.deploy(name="beside", context=2048, cache=2048)
        fleet.start(1, memory_limit="400M", join=first)
        fleet.start(2, memory_limit="400M", join=first, has_http=False)
        fleet.start(3, memory_limit="1M", join=first)
        for agent in fleet.live():
            agent.await_up()
        fleet.await_members()
        fleet.agents[1].deploy()
        yield fleet


@pytest.fixture
def agents(fleet: Fleet) -> Iterator[dict[int, AgentProcess]]:
    """The whole cluster; afterwards ``beside`` is what it was, and every agent is clean."""
    beside = fleet.agents[0].deployment("beside")
    demo = await_ready(fleet.agents[0], "demo")
    assert len(demo["stages"]) == 3
    with streaming(fleet.agents[0], "beside") as stream:
        yield fleet.agents
        assert stream.error is None
    after = fleet.agents[0].deployment("beside")
    assert beside is not None
    assert after is not None
    assert (after["epoch"], after["state"]) == (beside["epoch"], "ready")


def stage_workers(agents: dict[int, AgentProcess], deployment: Document) -> list[int]:
    """The process of each stage; ``beside`` is the older one at agent 0."""
    by_node = {agent.node_id: agent for agent in agents.values()}
    return [
        max(by_node[stage["node_id"]].workers(), key=lambda pid: psutil.Process(pid).create_time())
        for stage in deployment["stages"]
    ]


def num_sockets(agent: AgentProcess) -> int:
    return len(psutil.Process(agent.pid).net_connections("tcp"))


def check_goes_on(*streams: Stream) -> None:
    """The streams go on after the loss, each with the text of the model alone."""
    for stream in streams:
        length = len(stream.text) + 20
        eventually(
            lambda stream=stream, length=length: len(stream.text) > length or not stream.is_live,  # type: ignore[misc]
            within=20,
            what="the stream goes on",
        )
        assert stream.error is None
        text = stream.text  # it goes on meanwhile
        assert text == expected_stream()[: len(text)]


@functools.cache
def expected_stream() -> str:
    """What a stream may say, without a cluster."""
    with Model.open("demo", num_threads=1) as alone:
        bias = {int(token): value for token, value in no_end().items()}
        sampling: SamplingOptions = {"temperature": 0, "logit_bias": bias}
        return alone.generate(PROMPT, max_tokens=2000, **sampling).result().text


def check_served(agent: AgentProcess) -> None:
    with agent.client() as client:
        answer = client.completions.create(model="demo", prompt=PROMPT, max_tokens=8, temperature=0)
    assert answer.choices[0].text == expected_text()


@functools.cache
def expected_text() -> str:
    """What the model says without a cluster."""
    with Model.open("demo", context_tokens=64, num_threads=1) as alone:
        return alone.generate(PROMPT, max_tokens=8, temperature=0).result().text


def redeploy(agents: dict[int, AgentProcess]) -> Document:
    """``demo`` on all three agents that have memory, coordinated by agent 1."""
    agents[1].ask("undeploy", name="demo")
    return agents[1].deploy()


@pytest.mark.parametrize("stage", [1])
def test_a_worker(fleet: Fleet, agents: dict[int, AgentProcess], stage: int) -> None:
    before = await_ready(agents[1], "demo")
    workers = stage_workers(agents, before)
    assert len(set(workers)) == 3
    sockets = {number: num_sockets(agents[number]) for number in (0, 1, 2, 3)}
    with streaming(agents[3]) as remote, streaming(agents[1]) as local:
        psutil.Process(workers[stage]).kill()
        eventually(
            lambda: await_ready(agents[1], "demo")["epoch"]["number"] > before["epoch"]["number"],
            within=20,
            what="the next epoch",
        )
        check_goes_on(remote, local)
    after = await_ready(agents[3], "demo")
    assert after["epoch"]["number"] > before["epoch"]["number"]
    assert len(after["stages"]) == 3
    eventually(lambda: has_ended(workers[stage]), within=5, what="the killed worker is reaped")
    kept = [worker for index, worker in enumerate(workers) if index != stage]
    assert set(kept) < set(stage_workers(agents, after)), "the others keep their process"
    for agent in (agents[3], agents[1], agents[0]):
        check_served(agent)
    for number, count in sockets.items():
        eventually(
            lambda number=number, count=count: num_sockets(agents[number]) <= count + 1,  # type: ignore[misc]
            within=5,
            what=f"agent {number} has no more sockets than before",
        )
    assert agents[1].metric("potluck_kv_blocks", model="demo", state="used") == 0


def test_an_agent_that_only_hosts_and_its_return(
    fleet: Fleet, agents: dict[int, AgentProcess]
) -> None:
    before = await_ready(agents[1], "demo")
    lost = agents[2]
    workers = lost.workers()
    assert len(workers) == 1
    with streaming(agents[3]) as stream:
        lost.kill()
        eventually(
            lambda: await_ready(agents[1], "demo")["epoch"]["number"] > before["epoch"]["number"],
            within=20,
            what="the next epoch",
        )
        check_goes_on(stream)
    for worker in workers:
        eventually(lambda worker=worker: has_ended(worker), within=2, what="its workers end")  # type: ignore[misc]
    fleet.await_members()
    after = await_ready(agents[0], "demo")
    assert after["epoch"]["number"] > before["epoch"]["number"]
    assert lost.node_id not in {stage["node_id"] for stage in after["stages"]}
    check_served(agents[3])

    with leftover(lost, is_worker=True) as old, leftover(lost, is_worker=False) as stranger:
        returned = fleet.start(2, memory_limit="400M", join=agents[0], has_http=False).await_up()
        eventually(lambda: not old.is_running, within=1, what="the old worker is ended")
        assert stranger.is_running
        assert "ended workers left behind by an earlier agent: 1" in returned.log
    fleet.await_members()
    assert returned.node_id in {stage["node_id"] for stage in redeploy(agents)["stages"]}


@contextlib.contextmanager
def leftover(agent: AgentProcess, *, is_worker: bool) -> Iterator[Orphan]:
    """A process with the id of a worker that the agent noted; and that worker, if it is one."""
    process = Orphan(*LIKE_A_WORKER)
    try:
        notes = WorkerNotes(agent.state / "workers")
        notes.remember(process.pid)
        process.bereave()
        if not is_worker:
            path = notes.folder / str(process.pid)
            noted = msgspec.json.decode(path.read_bytes(), type=ProcessFacts)
            earlier = msgspec.structs.replace(noted, start_ticks=noted.start_ticks - 1)
            path.write_bytes(msgspec.json.encode(earlier))
        yield process
    finally:
        process.end()


def test_the_gateway_of_a_stream(fleet: Fleet, agents: dict[int, AgentProcess]) -> None:
    """Its sequence is given up; the deployment does not notice."""
    before = await_ready(agents[1], "demo")
    with streaming(agents[1]) as other:
        with streaming(agents[3]) as stream:
            agents[3].kill()
            stream.end(within=8)
            assert stream.error is not None
        eventually(
            lambda: agents[1].metric("potluck_sequences", model="demo", state="running") == 1,
            within=2,
            what="the sequence of the lost gateway is given up",
        )
        assert other.is_live
    assert other.error is None
    eventually(
        lambda: agents[1].metric("potluck_kv_blocks", model="demo", state="used") == 0,
        within=1,
        what="all blocks are free",
    )
    fleet.start(3, memory_limit="1M", join=agents[0]).await_up()
    fleet.await_members()
    assert await_ready(agents[3], "demo")["epoch"] == before["epoch"]
    check_served(agents[3])
