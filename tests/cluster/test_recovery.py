"""An answer outlives any machine: processes die, freeze and leave, and streams go on.

One cluster for most of the module: agent 0 is a gateway without memory for stages, agents 1 to 3
each hold a stage of ``demo`` and could hold all of it, and agent 1 coordinates. Every test leaves
the cluster whole again. Texts and log-probabilities are compared with those of the same requests
before anything was disturbed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from support.cluster.agents import AgentProcess, Document, Fleet, await_ready, stopped
from support.cluster.client_streams import begin, check_same
from support.process_facts import has_ended
from support.processes.confinement import control_group, covered, inside
from support.processes.jumping_clock import JumpingClock
from support.processes.waiting import eventually
from token_stream import Ask, TokenStream, stream_whole

from potluck.cluster.agent.asking import RemoteError
from potluck.errors import PotluckError

MODEL = "demo"
DYING = Path(__file__).parents[1] / "support" / "machines" / "dying"
SOURCES = Path(__file__).parents[2] / "src"
MIB = 2**20

RECOVERED_SECONDS = 15.0
"""From a death to the next token, on a crowded machine. ``benchmarks/recovery.py`` measures it.
What must not happen takes 30 s and longer: to wait until a step is overdue, or a client gives up.
"""
FROZEN_SECONDS = 3.0
"""Within which a worker that stands still is noticed."""
SILENCE_SECONDS = 1.5
"""Within which an agent that stands still is noticed."""
DOWN_SECONDS = 15.0
"""Under the load of two clients and two streams on two cores; it took 33 s and cut all of them."""

NUM_TOKENS = 300
"""Half a second of streaming at least, and several on a machine with other tests."""

PROMPT = "Once upon a time, in a harbour at the end of the world, there was a small light."
GREEDY = Ask(prompt=PROMPT, max_tokens=NUM_TOKENS, seed=1, temperature=0.0, penalty=0.0)
SAMPLED = Ask(prompt=PROMPT, max_tokens=NUM_TOKENS, seed=2**40 + 7, temperature=1.0, penalty=0.3)
SHORT = Ask(prompt="The old boat", max_tokens=12, seed=5, temperature=1.0, penalty=0.3)
FORMED = Ask(
    prompt=PROMPT,
    max_tokens=NUM_TOKENS,
    seed=3,
    temperature=1.0,
    penalty=0.3,
    schema=json.dumps(
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 12},
                    "kind": {"enum": ["harbour", "light", "boat"]},
                },
                "required": ["name", "kind"],
                "additionalProperties": False,
            },
            "minItems": 400,
        }
    ),
)
ASKS = (GREEDY, SAMPLED, SHORT, FORMED)
LONG = replace(SAMPLED, max_tokens=1500)
"""Goes on while an agent starts."""


# Clients.


def longest_gap(stream: TokenStream) -> float:
    times = stream.times
    return max(after - before for before, after in itertools.pairwise(times))


@dataclass(slots=True)
class Load:
    """Clients that send short requests all the time, each at one gateway."""

    expected: TokenStream
    over: threading.Event = field(default_factory=threading.Event)
    num_answered: int = 0
    problems: list[str] = field(default_factory=list)

    def run(self, agent: AgentProcess) -> None:
        port = int(agent.url.rpartition(":")[2])
        while not self.over.is_set():
            stream = TokenStream()
            stream.read(port, MODEL, SHORT)
            if stream.error:
                self.problems.append(f"agent {agent.number}: {stream.status} {stream.error}")
                time.sleep(0.05)  # so that what refuses at once does not fill the list
            elif (stream.text, stream.logprobs) != (self.expected.text, self.expected.logprobs):
                self.problems.append(f"agent {agent.number}: another text: {stream.text}")
            else:
                self.num_answered += 1


@contextlib.contextmanager
def load(expected: TokenStream, *gateways: AgentProcess) -> Iterator[Load]:
    """Steady requests while the block runs; none may fail."""
    steady = Load(expected=expected)
    threads = [threading.Thread(target=steady.run, args=(each,)) for each in gateways]
    for thread in threads:
        thread.start()
    try:
        eventually(
            lambda: steady.num_answered or steady.problems, within=20, what="requests are answered"
        )
        yield steady
    finally:
        steady.over.set()
        for thread in threads:
            thread.join()
    assert not steady.problems, f"{len(steady.problems)} problems: {steady.problems[:3]}"


# The cluster.


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The fleet, what its agents answer undisturbed, and what disturbs them."""

    fleet: Fleet
    expected: dict[Ask, TokenStream]
    clocks: dict[int, JumpingClock]
    points: dict[int, Path]

    @property
    def agents(self) -> dict[int, AgentProcess]:
        return self.fleet.agents

    @property
    def gateway(self) -> AgentProcess:
        return self.fleet.agents[0]

    def start(self, number: int) -> AgentProcess:
        """Start one of agents 1 to 3, for the first time or again."""
        environ = {
            **self.clocks[number].environ,
            "DIE_AT": str(self.points[number]),
            "PYTHONPATH": f"{DYING}:{SOURCES}",
        }
        first = next(iter(self.fleet.live()))
        return self.fleet.start(number, memory_limit="400M", join=first, environ=environ)

    def restore(self) -> None:
        """Have all agents run, and the model on agents 1 to 3 with agent 1 as coordinator."""
        for agent in self.fleet.live():
            if is_leaving(agent):
                agent.kill()  # a test that has failed may leave one that goes down
        for number in (1, 2, 3):
            if number not in self.agents or self.agents[number].process.poll() is not None:
                self.start(number)
        for agent in self.fleet.live():
            agent.await_up()
        self.fleet.await_members()
        deployed = self.gateway.deployment(MODEL)
        if deployed is not None:
            if deployed["state"] == "ready" and is_whole(deployed, self.agents[1]):
                return
            self.gateway.ask("undeploy", name=MODEL)
        deployed = self.agents[1].deploy(context=2048, cache=8192)
        assert is_whole(deployed, self.agents[1])
        for agent in self.fleet.live():
            await_ready(agent, MODEL)

    def deployment(self) -> Document:
        return await_ready(self.gateway, MODEL, within=30)

    def workers(self) -> set[int]:
        return {pid for agent in self.fleet.live() for pid in agent.workers()}


def is_leaving(agent: AgentProcess) -> bool:
    try:
        nodes = agent.cluster()["nodes"]
    except PotluckError:  # its control socket has gone already
        return True
    return any(node["node_id"] == agent.node_id and node["state"] == "draining" for node in nodes)


def is_whole(deployed: Document, coordinator: AgentProcess) -> bool:
    nodes = {stage["node_id"] for stage in deployed["stages"]}
    return len(nodes) == 3 and deployed["epoch"]["coordinator"] == coordinator.node_id


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("recovery")
    points = {number: directory / f"points-{number}" for number in (1, 2, 3)}
    for folder in points.values():
        folder.mkdir()
    with Fleet(directory) as fleet:
        cluster = Cluster(
            fleet=fleet,
            expected={},
            clocks={number: JumpingClock(directory / f"clock-{number}") for number in (1, 2, 3)},
            points=points,
        )
        fleet.start(0, memory_limit="1M").await_up()
        cluster.restore()
        port = int(cluster.gateway.url.rpartition(":")[2])
        cluster.expected.update((ask, stream_whole(port, MODEL, ask)) for ask in ASKS)
        yield cluster


@pytest.fixture
def cluster(started: Cluster) -> Iterator[Cluster]:
    """The whole cluster; afterwards it holds no blocks of sequences, and nothing is left over."""
    started.restore()
    yield started
    for clock in started.clocks.values():
        clock.jump(0)
    deployed = started.gateway.deployment(MODEL)
    if deployed is None or deployed["state"] != "ready":
        return  # the test has failed, or has said why
    eventually(lambda: is_idle(started.gateway), within=5, what="all blocks are free")
    for agent in started.fleet.live():
        assert "Traceback" not in agent.log


def is_idle(gateway: AgentProcess) -> bool:
    """Whether no sequence holds a block. A coordinator that is new has no figures for a moment."""
    try:
        return gateway.metric("potluck_kv_blocks", model=MODEL, state="used") == 0
    except AssertionError:
        return False


def worker_of(cluster: Cluster, stage: int) -> int:
    node_id = cluster.deployment()["stages"][stage]["node_id"]
    (agent,) = [each for each in cluster.agents.values() if each.node_id == node_id]
    (worker,) = agent.workers()
    return worker


# Death.


def test_a_worker_is_killed_and_all_streams_go_on(cluster: Cluster) -> None:
    """The other workers keep their processes, and with them their weights."""
    before = cluster.deployment()
    victim = worker_of(cluster, 1)
    others = cluster.workers() - {victim}
    remote, local = begin(cluster.gateway, SAMPLED), begin(cluster.agents[1], GREEDY)
    formed = begin(cluster.gateway, FORMED)
    os.kill(victim, signal.SIGKILL)
    check_same(remote.end(), cluster.expected[SAMPLED])
    check_same(local.end(), cluster.expected[GREEDY])
    check_same(formed.end(), cluster.expected[FORMED])
    assert json.loads(formed.stream.text.rpartition("},")[0] + "}]")
    assert longest_gap(remote.stream) < RECOVERED_SECONDS
    after = cluster.deployment()
    assert after["epoch"]["number"] > before["epoch"]["number"]
    assert len(after["stages"]) == 3
    assert others <= cluster.workers()
    assert len(cluster.workers()) == 3
    # Only the lost stage was read again.
    assert [stage["node_id"] for stage in after["stages"]] == [
        stage["node_id"] for stage in before["stages"]
    ]


@pytest.mark.parametrize(("number", "other"), [(2, 1), (1, 3)], ids=["host", "coordinator"])
def test_an_agent_is_killed_and_streams_at_other_gateways_go_on(
    cluster: Cluster, number: int, other: int
) -> None:
    before = cluster.deployment()
    lost = cluster.agents[number]
    lost_workers = lost.workers()
    kept = cluster.workers() - lost_workers
    remote, local = begin(cluster.gateway, GREEDY), begin(cluster.agents[other], SAMPLED)
    lost.kill()
    check_same(remote.end(), cluster.expected[GREEDY])
    check_same(local.end(), cluster.expected[SAMPLED])
    assert longest_gap(remote.stream) < RECOVERED_SECONDS
    after = cluster.deployment()
    assert after["epoch"]["number"] > before["epoch"]["number"]
    assert lost.node_id not in {stage["node_id"] for stage in after["stages"]}
    assert kept <= cluster.workers()
    for worker in lost_workers:
        eventually(lambda worker=worker: has_ended(worker), within=5, what="its workers end")  # type: ignore[misc]


def test_a_client_whose_gateway_died_gets_the_same_text_elsewhere(cluster: Cluster) -> None:
    other = begin(cluster.agents[1], GREEDY)
    lost = begin(cluster.agents[3], SAMPLED)
    so_far = cluster.agents[3].log  # read before it is gone
    cluster.agents[3].kill()
    cut = lost.end(within=5)
    assert cut.error, so_far
    assert cluster.expected[SAMPLED].text.startswith(cut.text)
    check_same(begin(cluster.gateway, SAMPLED, num_tokens=1).end(), cluster.expected[SAMPLED])
    check_same(other.end(), cluster.expected[GREEDY])


@pytest.mark.parametrize(
    ("role", "number", "point"), [("worker", 2, "after_send"), ("agent", 1, "before_send")]
)
def test_a_process_dies_at_a_point_of_the_protocol(
    cluster: Cluster, role: str, number: int, point: str
) -> None:
    """About to send a frame, or having just sent one: a step is done twice, or by nobody."""
    stream = begin(cluster.gateway, SAMPLED)
    order = cluster.points[number] / f"{role}-{point}"
    order.touch()
    check_same(stream.end(), cluster.expected[SAMPLED])
    assert not order.exists(), "nobody died"
    assert longest_gap(stream.stream) < RECOVERED_SECONDS


def test_requests_sent_during_a_recovery_wait_and_are_answered(cluster: Cluster) -> None:
    with load(cluster.expected[SHORT], cluster.gateway, cluster.agents[3]) as steady:
        for number in (2, 1):
            before = cluster.deployment()["epoch"]["number"]
            cluster.agents[number].kill()
            eventually(
                lambda before=before: cluster.deployment()["epoch"]["number"] > before,  # type: ignore[misc]
                within=30,
                what="the next epoch",
            )
            answered = steady.num_answered
            eventually(
                lambda answered=answered: steady.num_answered > answered + 2,  # type: ignore[misc]
                within=20,
                what="requests are answered again",
            )


# Frozen.


def test_a_worker_that_stands_still_is_noticed_and_replaced(cluster: Cluster) -> None:
    victim = worker_of(cluster, 1)
    others = cluster.workers() - {victim}
    stream = begin(cluster.gateway, SAMPLED)
    os.kill(victim, signal.SIGSTOP)
    try:
        check_same(stream.end(), cluster.expected[SAMPLED])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGCONT)
    assert longest_gap(stream.stream) < FROZEN_SECONDS + RECOVERED_SECONDS
    eventually(lambda: has_ended(victim), within=5, what="it is ended")
    assert others <= cluster.workers()


def test_a_coordinator_that_stands_still_is_left_behind_and_obeys_when_it_goes_on(
    cluster: Cluster,
) -> None:
    """With its worker, as on a host that is suspended: no socket is closed."""
    before, number = cluster.deployment(), 1
    sampled, greedy = begin(cluster.gateway, SAMPLED), begin(cluster.agents[3], GREEDY)
    with stopped(cluster.agents[number]):
        check_same(sampled.end(), cluster.expected[SAMPLED])
        check_same(greedy.end(), cluster.expected[GREEDY])
        assert longest_gap(sampled.stream) < SILENCE_SECONDS + RECOVERED_SECONDS
        after = cluster.deployment()
        assert after["epoch"]["number"] > before["epoch"]["number"]
        assert cluster.agents[number].node_id not in {stage["node_id"] for stage in after["stages"]}
    cluster.fleet.await_members()
    eventually(lambda: agree(cluster), within=15, what="all agents agree on who serves it")
    for gateway in (0, 1, 2, 3):
        again = begin(cluster.agents[gateway], SHORT, num_tokens=1)
        check_same(again.end(), cluster.expected[SHORT])


def test_a_moment_of_standing_still_changes_nothing(cluster: Cluster) -> None:
    before = cluster.deployment()
    stream = begin(cluster.gateway, SAMPLED)
    with stopped(cluster.agents[2]):
        time.sleep(0.3)  # well within the lease
    check_same(stream.end(), cluster.expected[SAMPLED])
    assert cluster.deployment()["epoch"] == before["epoch"]


def agree(cluster: Cluster) -> bool:
    known = [agent.deployment(MODEL) for agent in cluster.fleet.live()]
    epochs = [each["epoch"] for each in known if each and each["state"] == "ready"]
    return len(epochs) == len(known) and all(epoch == epochs[0] for epoch in epochs)


def test_clocks_that_jump_disturb_nothing(cluster: Cluster) -> None:
    """The coordinator's ahead and a host's back, by two hours; a recovery after it works, too."""
    before = cluster.deployment()
    stream = begin(cluster.gateway, SAMPLED)
    for number, seconds in ((1, 7200), (2, -7200)):
        cluster.clocks[number].jump(seconds)
    check_same(stream.end(), cluster.expected[SAMPLED])
    assert cluster.deployment()["epoch"] == before["epoch"]
    assert len(cluster.gateway.members()) == 4
    stream = begin(cluster.gateway, GREEDY)
    os.kill(worker_of(cluster, 0), signal.SIGKILL)
    check_same(stream.end(), cluster.expected[GREEDY])


# Leaving and joining.


@pytest.mark.timing
@pytest.mark.parametrize("number", [2, 1], ids=["host", "coordinator"])
def test_down_under_steady_load_takes_seconds_and_fails_nothing(
    cluster: Cluster, number: int
) -> None:
    leaver = cluster.agents[number]
    workers = leaver.workers()
    with load(cluster.expected[SHORT], cluster.gateway, cluster.agents[3]):
        remote, own = begin(cluster.gateway, SAMPLED), begin(leaver, GREEDY)
        started = time.monotonic()
        completed = leaver.command_line("down")
        seconds = time.monotonic() - started
        check_same(remote.end(), cluster.expected[SAMPLED])
        check_same(own.end(), cluster.expected[GREEDY])
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr.endswith("this node has left the cluster\n")
    assert seconds < DOWN_SECONDS
    assert leaver.process.wait(10) == 0
    assert all(has_ended(pid) for pid in workers)
    assert not (leaver.state / "control.sock").exists()
    after = cluster.deployment()
    assert leaver.node_id not in {stage["node_id"] for stage in after["stages"]}


@pytest.mark.timing
def test_joining_with_memory_for_a_stage_disturbs_no_stream(cluster: Cluster) -> None:
    expected = stream_whole(int(cluster.gateway.url.rpartition(":")[2]), MODEL, LONG)
    cluster.agents[2].kill()
    cluster.fleet.await_members()
    eventually(
        lambda: len({s["node_id"] for s in cluster.deployment()["stages"]}) == 2,
        within=30,
        what="the others serve",
    )
    sampled = begin(cluster.gateway, LONG)
    cluster.start(2).await_up()
    cluster.fleet.await_members()
    check_same(sampled.end(), expected)
    assert longest_gap(sampled.stream) < 1.0  # of what starting an agent takes from this machine
    check_same(begin(cluster.agents[2], GREEDY).end(), cluster.expected[GREEDY])


# Too little of something.


def test_where_memory_is_missing_requests_wait_and_then_say_how_much(tmp_path: Path) -> None:
    """Two agents that hold a good half each: with one of them, nobody can compute."""
    wait_seconds = 3.0
    with Fleet(tmp_path) as fleet:
        gateway = fleet.start(0, memory_limit="1M").await_up()
        for number in (1, 2):
            fleet.start(number, memory_limit="82M", join=gateway).await_up()
        fleet.await_members()
        deployed = gateway.ask(
            "deploy",
            model=MODEL,
            context_tokens=1024,
            cache_tokens=1024,
            recovery_wait_seconds=wait_seconds,
        )
        assert len(deployed["stages"]) == 2
        port = int(gateway.url.rpartition(":")[2])
        await_ready(gateway, MODEL)
        expected = stream_whole(port, MODEL, GREEDY)
        interrupted = begin(gateway, GREEDY)
        kept = fleet.agents[1].workers()
        fleet.agents[2].kill()
        killed_at = time.monotonic()
        late = TokenStream()
        late.read(port, MODEL, SHORT)
        for stream in (interrupted.end(within=20), late):
            assert stream.ended_at is not None
            assert wait_seconds - 0.5 < stream.ended_at - killed_at < wait_seconds + 10
            assert "MiB" in stream.error
        assert late.status == 503
        assert expected.text.startswith(interrupted.stream.text)
        # Not lost for good: as soon as there is memory, requests are answered.
        fleet.start(2, memory_limit="82M", join=gateway).await_up()

        def is_answered() -> bool:
            stream = TokenStream()
            stream.read(port, MODEL, SHORT)
            return not stream.error

        eventually(is_answered, within=60, what="a request is answered")
        assert kept <= fleet.agents[1].workers()
        check_same(begin(gateway, GREEDY).end(), expected)


def test_a_control_groups_limit_is_kept_when_its_agent_takes_over_stages(tmp_path: Path) -> None:
    """Agent 1 has the model's other half, and dies; nothing is killed for want of memory."""
    limit = 320 * MIB
    group = Path(f"/sys/fs/cgroup/memory/potluck-recovery-{os.getpid()}")
    with control_group(group, {"memory.limit_in_bytes": str(limit)}) as path:
        fleet = Fleet(tmp_path)
        try:
            gateway = fleet.start(0, memory_limit="1M").await_up()
            fleet.start(1, memory_limit="400M", join=gateway).await_up()
            confined = fleet.start(2, join=gateway, prefix=inside(path)).await_up()
            fleet.await_members()
            gateway.deploy(context=1024, cache=2048)
            await_ready(gateway, MODEL)
            expected = stream_whole(int(gateway.url.rpartition(":")[2]), MODEL, SAMPLED)
            stream = begin(gateway, SAMPLED)
            fleet.agents[1].kill()
            check_same(stream.end(), expected)
            stages = await_ready(gateway, MODEL)["stages"]
            assert {stage["node_id"] for stage in stages} == {confined.node_id}
            assert sum(stage["num_bytes"] for stage in stages) < limit
            killed = (path / "memory.oom_control").read_text().split()
            assert killed[killed.index("oom_kill") + 1] == "0"
        finally:
            for agent in fleet.agents.values():
                agent.clean_up()


def test_a_full_disk_does_not_end_a_stream(tmp_path: Path) -> None:
    """Weights are mapped from a file of 8 MiB at agent 2, which cannot pack what agent 1 had."""
    cache = tmp_path / "cache"
    cache.mkdir()
    with Fleet(tmp_path / "fleet") as fleet:
        gateway = fleet.start(0, memory_limit="1M").await_up()
        fleet.start(1, memory_limit="400M", join=gateway).await_up()
        confined = fleet.start(
            2,
            memory_limit="400M",
            join=gateway,
            prefix=covered(cache, "size=16m"),
            environ={"XDG_CACHE_HOME": str(cache)},
        ).await_up()
        fleet.await_members()
        deployed = gateway.ask(
            "deploy",
            model=MODEL,
            context_tokens=1024,
            cache_tokens=2048,
            is_mapped=True,
            recovery_wait_seconds=12.0,
            objective="memory",
        )
        assert len(deployed["stages"]) == 2
        await_ready(gateway, MODEL)
        expected = stream_whole(int(gateway.url.rpartition(":")[2]), MODEL, SAMPLED)
        stream = begin(gateway, SAMPLED)
        fleet.agents[1].kill()
        ended = stream.end(within=90)
        if ended.error:  # it says why: the disk is full
            assert "No space left on device" in ended.error
            assert expected.text.startswith(ended.text)
        else:
            check_same(ended, expected)
        assert confined.process.poll() is None
        fleet.start(3, memory_limit="400M", join=gateway).await_up()
        eventually(
            lambda: is_answered(gateway, expected), within=30, what="it is served by agent 3"
        )


def is_answered(gateway: AgentProcess, expected: TokenStream) -> bool:
    stream = TokenStream()
    stream.read(int(gateway.url.rpartition(":")[2]), MODEL, SAMPLED)
    if stream.error:
        return False
    check_same(stream, expected)
    return True


def test_spares_take_over_without_loading(tmp_path: Path) -> None:
    """What a lost node had is ready elsewhere; undeploying ends the spares, too."""
    with Fleet(tmp_path) as fleet:
        gateway = fleet.start(0, memory_limit="1M").await_up()
        for number in (1, 2):
            fleet.start(number, memory_limit="400M", join=gateway).await_up()
        fleet.await_members()
        gateway.ask(
            "deploy",
            model=MODEL,
            context_tokens=1024,
            cache_tokens=2048,
            num_spares=1,
            objective="memory",
        )
        await_ready(gateway, MODEL)
        eventually(
            lambda: any(each["spares"] for each in gateway.ask("state")["deployments"]),
            within=20,
            what="a spare is loaded",
        )
        eventually(
            lambda: all(len(fleet.agents[number].workers()) > 0 for number in (1, 2)),
            within=20,
            what="both nodes hold something",
        )
        expected = stream_whole(int(gateway.url.rpartition(":")[2]), MODEL, SAMPLED)
        stream = begin(gateway, SAMPLED)
        held = fleet.agents[2].workers()
        fleet.agents[1].kill()
        check_same(stream.end(), expected)
        assert fleet.agents[2].workers() == held
        gateway.ask("undeploy", name=MODEL)
        eventually(lambda: not fleet.agents[2].workers(), within=5, what="all of it is ended")
        with pytest.raises(RemoteError, match="nothing is deployed"):
            gateway.ask("undeploy", name=MODEL)
