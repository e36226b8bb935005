"""A cluster in virtual time, its clients, and what is done to both."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self, cast

from simulation.agent import Agent, Rules, new_record
from simulation.history import Answer, History
from simulation.stages import Switches
from simulation.weights import Hub
from support.cluster.played_network import LEASE_SECONDS, Network
from support.virtual_time.loop import VirtualLoop

from potluck.placement.rebalancing import RebalancePolicy
from potluck.types.choices import Rebalance
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.deployment import DeploymentRecord
from potluck.types.sequence import SequenceRequest
from potluck.types.step import SamplingParams

MODEL = DeploymentId("toy")

_MOST_MOVES = 4
"""In a row, after all is well."""


QUICK = RebalancePolicy(
    settle_seconds=0.5,
    confirm_seconds=0.2,
    cool_down_seconds=1.0,
    most_wait_seconds=20.0,
    memory_seconds=60.0,
    horizon_seconds=60.0,
    check_seconds=2.0,
    watch_seconds=0.5,
)
"""Some twenty times as quick as in production, for schedules that last some seconds."""


def room_for(num_layers: int) -> int:
    """The capacity of a node that holds that many layers of the toy model, and both ends."""
    return 10 * num_layers + 6 if num_layers else 0


class World:
    """Nodes by number from 1 on; the deployment is made by the first that starts.

    ``loop`` and ``history`` are there to look at. ``has_drained``: a node was asked to leave, whose
    streams may take a while. Use it as a context manager.
    """

    def __init__(
        self,
        seed: int,
        capacities: Iterable[int],
        *,
        switches: Switches | None = None,
        recovery_wait_seconds: float = 60.0,
        duplicates: float = 0.0,
        rebalance: Rebalance = Rebalance.NEVER,
        rebalance_policy: RebalancePolicy = QUICK,
        num_states: int = 0,
        has_drafts: bool = False,
        hub: Hub | None = None,
    ) -> None:
        draws = random.Random(f"{seed} threads")
        self.loop = VirtualLoop(lambda: draws.uniform(0.0, 0.002))  # type: ignore[abstract]
        self.history = History()
        self.network = Network(self.loop, seed)
        self.agents: dict[int, Agent] = {}
        self.requests: dict[int, set[asyncio.Task[None]]] = {}
        self.capacities = dict(enumerate(capacities, 1))
        self._rules = Rules(
            history=self.history,
            switches=switches or Switches(),
            duplicates=duplicates,
            rebalance_policy=rebalance_policy,
            has_drafts=has_drafts,
            hub=hub,
        )
        self._rebalance = rebalance
        self._num_states = num_states
        self._slowness: dict[int, float] = {}
        self._seed = seed
        self._num_starts = 0
        self._recovery_wait_seconds = recovery_wait_seconds
        self.has_drained = False
        self._cuts: set[tuple[int, int]] = set()
        self._log = _Errors(self.history)

    def __enter__(self) -> Self:
        log = logging.getLogger("potluck")
        log.addHandler(self._log)
        log.propagate = False
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.loop.shut_down()
        log = logging.getLogger("potluck")
        log.removeHandler(self._log)
        log.propagate = True

    @property
    def now(self) -> float:
        return self.loop.time()

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.loop.run_until(self.loop.time() + seconds)

    def run_while(self, is_so: Callable[[], bool], *, at_most: float) -> bool:
        """Let time pass while something is so; False if it still is after ``at_most`` seconds."""
        deadline = self.now + at_most
        while is_so():
            if self.now >= deadline:
                return False
            self.run(0.25)
        return True

    def at(self, seconds: float, work: Callable[..., object], *arguments: object) -> None:
        """Do something when that much time has passed."""
        self.loop.call_later(seconds, work, *arguments)

    # Nodes.

    def start(self, *nodes: int) -> None:
        """Start the agents of nodes that do not run."""
        for node in nodes:
            if node in self.agents:
                continue
            self._num_starts += 1
            process = self.network.start(_id(node))
            self.agents[node] = Agent(
                process,
                self._rules,
                capacity=self.capacities[node],
                seed=f"{self._seed} {node} {self._num_starts}",
            )
            self.agents[node].stages.slowness = self._slowness.get(node, 1.0)
            self.history.note(self.now, f"start {node}")

    def start_all(self) -> None:
        """Start all nodes, and deploy at the first when they see each other."""
        self.start(*self.capacities)
        self.run(1.0)
        self.deploy(min(self.capacities))

    def deploy(self, node: int) -> None:
        """Deploy at a node, and wait until it is ready."""
        agent = self.agents[node]
        record = new_record(
            MODEL,
            agent.node_id,
            recovery_wait_seconds=self._recovery_wait_seconds,
            rebalance=self._rebalance,
            num_states=self._num_states,
        )
        agent.process.run(self._start_task, agent.deploy(record))
        if not self.run_while(lambda: not self.is_serving, at_most=30.0):
            self.history.violation("it is not deployed")

    def _start_task(self, work: Any) -> None:
        self.loop.create_task(work)

    def crash(self, node: int, *, is_silent: bool = False) -> None:
        """Kill a node's agent with its workers; ``is_silent``: as if its machine lost power."""
        agent = self.agents.pop(node, None)
        if agent is None:
            return
        self.history.note(self.now, f"crash {node}")
        self.network.crash(agent.process, is_silent=is_silent)
        for task in list(self.requests.get(node, ())):
            task.cancel()

    def drain(self, node: int, *, returns_after: float | None = None) -> None:
        """Have a node leave in good order, and perhaps come back."""
        agent = self.agents.get(node)
        if agent is None:
            return
        self.history.note(self.now, f"drain {node}")
        self.has_drained = True

        async def leave() -> None:
            await agent.drain()
            while not self.is_known_beside(node):
                await asyncio.sleep(0.1)
            await agent.close()
            self.loop.call_soon(self._leave, node, agent, returns_after)

        agent.process.run(self._start_task, leave())

    def _leave(self, node: int, agent: Agent, returns_after: float | None) -> None:
        if self.agents.get(node) is agent:
            self.history.note(self.now, f"left in good order {node}")
            self.crash(node)
            if returns_after is not None:
                self.at(returns_after, self.start, node)

    def cut(self, sender: int, receiver: int) -> None:
        """Cut a link in one direction."""
        self.history.note(self.now, f"cut {sender} -> {receiver}")
        self._cuts.add((sender, receiver))
        self.network.cut(_id(sender), _id(receiver))

    def heal(self, sender: int, receiver: int) -> None:
        """Heal it."""
        self.history.note(self.now, f"heal {sender} -> {receiver}")
        self._cuts.discard((sender, receiver))
        self.network.heal(_id(sender), _id(receiver))

    def cut_between(self, some: Iterable[int], others: Iterable[int]) -> None:
        """Cut all links between two sets of nodes, both ways."""
        for one, other in _pairs(some, others):
            self.cut(one, other)
            self.cut(other, one)

    def heal_between(self, some: Iterable[int], others: Iterable[int]) -> None:
        """Heal them."""
        for one, other in _pairs(some, others):
            self.heal(one, other)
            self.heal(other, one)

    def heal_all(self) -> None:
        """Heal every link, start every node, let every worker go on."""
        for sender, receiver in sorted(self._cuts):
            self.heal(sender, receiver)
        for one, other in _pairs(self.capacities, self.capacities):
            self.network.slow(_id(one), _id(other), 0.0)
        self.start(*self.capacities)
        for agent in self.agents.values():
            for worker in agent.stages.workers:
                agent.process.run(agent.stages.thaw, worker)

    def slow(self, sender: int, receiver: int, seconds: float) -> None:
        """Let everything from one node to another take longer."""
        self.history.note(self.now, f"slow {sender} -> {receiver}")
        self.network.slow(_id(sender), _id(receiver), seconds)

    def kill_worker(self, node: int, index: int = 0) -> None:
        """Kill a worker of a node, if it has one."""
        agent = self.agents.get(node)
        if agent is not None and agent.stages.workers:
            self.history.note(self.now, f"kill a worker of {node}")
            workers = agent.stages.workers
            worker = workers[index % len(workers)]
            self.loop.call_soon(agent.process.run, agent.stages.kill, worker)

    def freeze_worker(self, node: int, index: int = 0) -> None:
        """Stop a worker of a node, if it has one."""
        agent = self.agents.get(node)
        if agent is not None and agent.stages.workers:
            self.history.note(self.now, f"freeze a worker of {node}")
            workers = agent.stages.workers
            agent.stages.freeze(workers[index % len(workers)])

    def thaw_workers(self, node: int) -> None:
        """Let a node's workers go on."""
        agent = self.agents.get(node)
        if agent is not None:
            for worker in list(agent.stages.workers):
                agent.process.run(agent.stages.thaw, worker)

    def set_slowness(self, node: int, slowness: float) -> None:
        """Have a node compute as much slower than at first, and report it."""
        self.history.note(self.now, f"{node} is {slowness:g} times as slow")
        self._slowness[node] = slowness
        agent = self.agents.get(node)
        if agent is not None:
            agent.stages.slowness = slowness

    def break_disk(self, node: int) -> None:
        """Have a node load nothing from now on, until its agent starts again."""
        agent = self.agents.get(node)
        if agent is not None:
            self.history.note(self.now, f"{node} can load nothing")
            agent.stages.cannot_load = True

    def repair_disk(self, node: int) -> None:
        """Have it load again."""
        agent = self.agents.get(node)
        if agent is not None:
            agent.stages.cannot_load = False

    # Clients.

    def ask(
        self,
        node: int,
        *,
        num_prompt_tokens: int = 5,
        max_new_tokens: int = 10,
        seed: int = 1,
        score_prompt: bool = False,
    ) -> Answer:
        """A client sends a request to a node's gateway; to another one if that is lost."""
        draws = random.Random(seed)
        request = SequenceRequest(
            prompt_tokens=tuple(draws.randrange(1000) for _ in range(num_prompt_tokens)),
            sampling=SamplingParams(seed=seed),
            max_new_tokens=max_new_tokens,
            request_id=f"request {seed}",
            score_prompt=score_prompt,
        )
        return self.send(node, request)

    def send(self, node: int, request: SequenceRequest, *, attempt: int = 0) -> Answer:
        """The same, with a request."""
        name = f"{request.request_id}.{attempt} at {node}"
        answer = self.history.record_request(name, request, self.now)
        agent = self.agents.get(node)
        if agent is None:
            self.history.ended(answer, "gateway lost", self.now)
            self._send_again(node, request, attempt)
            return answer

        async def serve() -> None:
            await agent.serve(MODEL, answer)

        def over(task: asyncio.Task[None]) -> None:
            self.requests[node].discard(task)
            if self._is_over:
                return
            if answer.num_ends == 0 and task.cancelled():
                self.history.ended(answer, "gateway lost", self.now)
            if answer.end == "gateway lost":
                self._send_again(node, request, attempt)

        def begin() -> None:
            task = self.loop.create_task(serve())
            self.requests.setdefault(node, set()).add(task)
            task.add_done_callback(over)

        agent.process.run(begin)
        return answer

    _is_over = False

    def _send_again(self, node: int, request: SequenceRequest, attempt: int) -> None:
        self.loop.call_later(0.3, self._resend, node, request, attempt + 1)

    def _resend(self, node: int, request: SequenceRequest, attempt: int) -> None:
        if self._is_over:
            return
        others = sorted(self.agents)
        if not others:
            self._send_again(node, request, attempt)
        else:
            self.send(others[attempt % len(others)], request, attempt=attempt)

    # What is so.

    @property
    def records(self) -> dict[int, DeploymentRecord | None]:
        """What each agent knows of the deployment."""
        return {
            node: agent.coordination.records.get(MODEL)
            for node, agent in sorted(self.agents.items())
        }

    def is_known_beside(self, node: int) -> bool:
        """Whether another node knows of the deployment: if all forget it, nobody can go on."""
        return any(record is not None and other != node for other, record in self.records.items())

    @property
    def coordinators(self) -> list[int]:
        """The nodes that say they coordinate it."""
        return [
            node
            for node, agent in sorted(self.agents.items())
            if MODEL in agent.coordination.coordinated
        ]

    def count_moves(self) -> int:
        """How often those who coordinate it now have moved it to a better plan."""
        return sum(
            cast(Any, self.agents[node].coordination.coordinated[MODEL])._rebalancing.num_moves
            for node in self.coordinators
        )

    @property
    def stages(self) -> list[tuple[str, int, int]]:
        """Where the layers are, as the first node knows it."""
        record = next(iter(self.records.values()))
        assert record is not None
        return [(each.node_id, each.start_layer, each.end_layer) for each in record.stages]

    @property
    def epoch(self) -> Epoch | None:
        """The epoch that serves, if all agree on one."""
        return self._agreed()

    def _agreed(self) -> Epoch | None:
        records = list(self.records.values())
        first = records[0] if records else None
        if first is None or any(each is None or each.epoch != first.epoch for each in records):
            return None
        return first.epoch

    @property
    def is_serving(self) -> bool:
        """All agents agree that it is ready, and one coordinates it."""
        epoch = self._agreed()
        if epoch is None or len(self.coordinators) != 1:
            return False
        (node,) = self.coordinators
        agent = self.agents[node]
        ready = all(record is not None and record.is_ready for record in self.records.values())
        return (
            ready
            and epoch.coordinator == agent.node_id
            and agent.coordination.coordinated[MODEL].load is not None
        )

    @property
    def is_answering(self) -> bool:
        """A client still waits."""
        return any(answer.num_ends == 0 for answer in self.history.answers) or any(
            answer.end == "gateway lost" and not self._was_sent_again(answer)
            for answer in self.history.answers
        )

    def _was_sent_again(self, answer: Answer) -> bool:
        return any(
            other.request is answer.request and other.requested_at > answer.requested_at
            for other in self.history.answers
        )

    def end(self, *, within: float = 45.0, may_fail: bool = False) -> None:
        """Check what a run must have come to, ``within`` a time after all is well again."""
        since = self.now
        self.run(LEASE_SECONDS + 2.0)  # what was cut off before may not be noticed yet
        self.run_while(lambda: self.is_answering or not self.is_serving, at_most=within)
        if not self.is_serving:
            self.history.violation(
                f"it does not serve {within:g} s after all is well:"
                f" {[_describe(each) for each in self.records.values()]},"
                f" coordinated by {self.coordinators}"
            )
        else:
            self.history.note(self.now, f"serves {self.now - since:.2f} s after all is well")
            before = self.epoch
            self.run(2.0)
            for _ in range(_MOST_MOVES if self._rebalance is Rebalance.AUTO else 0):
                if self.epoch == before and self.is_serving:
                    break
                self.run_while(lambda: not self.is_serving, at_most=within)
                before = self.epoch
                self.run(2.0)
            if self.epoch != before or not self.is_serving:
                self.history.violation(f"epochs do not settle: {before} becomes {self.epoch}")
            self._check_blocks()
        self.history.check_answers(may_fail=may_fail)
        self._is_over = True
        for problem in self.loop.problems:
            self.history.violation(problem)

    def _check_blocks(self) -> None:
        for node in self.coordinators:
            deployment = cast(Any, self.agents[node].coordination.coordinated[MODEL])
            dispatcher = deployment._requests._dispatcher
            load, limits = dispatcher.load, dispatcher._limits
            if self.is_answering:
                continue
            if load.num_free_blocks != limits.num_blocks or load.num_running or load.num_waiting:
                self.history.violation(f"blocks do not balance: {load} of {limits.num_blocks}")
            if load.states.num_live:
                self.history.violation(f"state slots are left over: {load.states}")
            if dispatcher.live:
                self.history.violation(f"sequences are left over: {dispatcher.live}")


class _Errors(logging.Handler):
    """What the code under test logs as an error is one."""

    def __init__(self, history: History) -> None:
        super().__init__(logging.ERROR)
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        details = f": {record.exc_info[1]!r}" if record.exc_info else ""
        self._history.violation(f"logged as an error: {record.getMessage()}{details}")


def _id(node: int) -> NodeId:
    return NodeId(f"n{node}")


def _pairs(some: Iterable[int], others: Iterable[int]) -> list[tuple[int, int]]:
    others = list(others)
    return [(one, other) for one in some for other in others if one != other]


def _describe(record: DeploymentRecord | None) -> str:
    if record is None:
        return "unknown"
    epoch = record.epoch
    return f"{epoch.number}/{epoch.coordinator} {record.status.state.value} {record.status.reason}"
