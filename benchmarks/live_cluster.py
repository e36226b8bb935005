"""Agents of one cluster on this machine, which are killed and restarted while they serve.

A :class:`LiveCluster` ends all that it started. Every process that descends from it carries a
mark in its environment, so that what is left over at the end can be found.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from potluck.cluster.agent.asking import ask
from potluck.cluster.network.trust.secret import generate_secret
from potluck.errors import PotluckError
from potluck.host.child_environment import SECRET_VARIABLE

MARK = "BENCHMARKED_CLUSTER"
WORKER_MODULE = "potluck.cluster.worker"
_ADDRESS = re.compile(r"other nodes reach it at (\S+)")
_START_SECONDS = 60.0
_MEMBERS_SECONDS = 60.0
_DEPLOY_SECONDS = 600.0
_END_SECONDS = 40.0
_POLL_SECONDS = 0.02

Document = dict[str, Any]


class LiveAgent:
    """One ``potluck up``, which may be started several times with the same state directory."""

    def __init__(self, number: int, directory: Path, node_id: str) -> None:
        self.number = number
        self.node_id = node_id
        self.directory = directory / f"agent-{number}"
        self.state = self.directory / "state"
        self.state.mkdir(mode=0o700, parents=True)
        (self.state / "node-id").write_text(node_id + "\n", encoding="ascii")
        self.log = self.directory / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self._output = self.directory / "output"
        self._log_start = 0

    @property
    def is_live(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the latest start."""
        assert self.process is not None
        return self.process.pid

    @property
    def port(self) -> int:
        """The port of its HTTP API."""
        return int(self._output.read_text("utf-8").split()[0].rpartition(":")[2])

    @property
    def address(self) -> str:
        """The address at which other nodes join it; empty until it is up."""
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            found = _ADDRESS.search(file.read().decode("utf-8", "replace"))
        return found[1] if found else ""

    def start(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start its process; the log goes on where it was."""
        with self._output.open("wb") as output, self.log.open("ab") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                [*command, "--state", str(self.state)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                env=dict(environ),
                start_new_session=True,
            )
        self.started_at = time.monotonic()

    def ask(self, method: str, **params: object) -> Document:
        """Call the agent, and return the result. Raise ``PotluckError`` if that fails."""
        *_, document = ask(self.state / "control.sock", method, params)
        result: Document = document["result"]
        return result

    def workers(self) -> list[int]:
        """Process ids of its workers."""
        if not self.is_live:
            return []
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self.pid).children()
            return [child.pid for child in children if _is_worker(child)]
        return []

    def kill(self) -> float:
        """Send ``kill -9``; return the time of it, as ``time.monotonic`` gives it."""
        assert self.process is not None
        killed_at = time.monotonic()
        self.process.kill()
        self.process.wait()
        return killed_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """Processes (by command) and files (by path) that remain although nothing should."""

    processes: tuple[str, ...]
    files: tuple[str, ...]


class LiveCluster:
    """Agents, by default with one thread each, numbered from 0; use it as a context manager."""

    def __init__(
        self, directory: Path, *, python: str = sys.executable, memory_limit: str | None = None
    ) -> None:
        self.agents: dict[int, LiveAgent] = {}
        self._directory = directory
        self._python = python
        self._memory_limit = memory_limit
        self._limits: dict[int, str | None] = {}
        self._mark = uuid.uuid4().hex
        kept = {name: v for name, v in os.environ.items() if not name.startswith("POTLUCK_")}
        self._environ = {
            **kept,
            MARK: self._mark,
            "XDG_CONFIG_HOME": str(directory / "config"),
            SECRET_VARIABLE: generate_secret(),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> Leftovers:
        """End all agents in order; what was left after that, which is ended too."""
        live = self.live()
        for agent in live:
            with contextlib.suppress(ProcessLookupError):
                os.kill(agent.pid, signal.SIGTERM)
        for agent in live:
            assert agent.process is not None
            try:
                agent.process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                agent.kill()
        left = self._processes()
        _, left = psutil.wait_procs(left, timeout=2)
        found = Leftovers(
            processes=tuple(sorted(" ".join(_command(process)) for process in left)),
            files=tuple(sorted(map(str, self._left_files()))),
        )
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        return found

    def start(
        self,
        number: int,
        *,
        memory_limit: str | None = None,
        node_id: str = "",
        core: int | None = None,
        num_threads: int = 1,
    ) -> LiveAgent:
        """Start an agent, for the first time or again, and wait until it is up.

        With ``core`` it and all that it starts are bound to that core.
        """
        agent = self.agents.get(number)
        others = self.live()
        if agent is None:
            agent = LiveAgent(number, self._directory, node_id or f"{number:016x}")
            self.agents[number] = agent
            self._limits[number] = memory_limit or self._memory_limit
        limit = self._limits[number]
        command = [] if core is None else ["taskset", "-c", str(core)]
        command += [self._python, "-m", "potluck", "up", "--threads", str(num_threads)]
        command += ["--http", "127.0.0.1:0"]
        command += ["--memory-limit", limit] if limit else []
        command += ["--join", others[0].address] if others else []
        agent.start(command, self._environ)
        found = agent

        def is_up() -> bool:
            if not found.is_live:
                raise RuntimeError(f"agent {number} ended: {found.log.read_text('utf-8')[-2000:]}")
            return bool(found.address)

        wait_until(is_up, within=_START_SECONDS, what=f"agent {number} is up")
        return agent

    def live(self) -> list[LiveAgent]:
        """Return the agents whose process runs."""
        return [agent for agent in self.agents.values() if agent.is_live]

    def await_members(self) -> None:
        """Wait until every live agent sees exactly the live agents."""
        everyone = {agent.node_id for agent in self.live()}

        def agree() -> bool:
            return all(
                {node["node_id"] for node in agent.ask("state")["nodes"]} == everyone
                for agent in self.live()
            )

        wait_until(agree, within=_MEMBERS_SECONDS, what="all agents see each other")

    def deploy(self, coordinator: LiveAgent, model: str, name: str, **options: object) -> Document:
        """Deploy from ``coordinator``, and wait until every agent knows it as ready."""
        deployed = coordinator.ask("deploy", model=model, model_id=name, **options)
        for agent in self.live():
            self.await_ready(agent, name)
        return deployed

    def deployment(self, agent: LiveAgent, name: str) -> Document | None:
        """Return the deployment as ``agent`` knows it; None if it knows none or does not answer."""
        with contextlib.suppress(PotluckError, OSError):
            for deployment in agent.ask("state")["deployments"]:
                if deployment["model_id"] == name:
                    found: Document = deployment
                    return found
        return None

    def await_ready(self, agent: LiveAgent, name: str) -> Document:
        """Return the deployment once ``agent`` reports it as ready."""
        found: Document = {}

        def is_ready() -> bool:
            found.clear()
            found.update(self.deployment(agent, name) or {})
            return found.get("state") == "ready"

        wait_until(is_ready, within=_DEPLOY_SECONDS, what=f"{name} is ready")
        return found

    def by_node(self, node_id: str) -> LiveAgent:
        """Return the agent of a node."""
        (found,) = [agent for agent in self.agents.values() if agent.node_id == node_id]
        return found

    def _processes(self) -> list[psutil.Process]:
        """Return every process that descends from this cluster."""
        return [process for process in psutil.process_iter() if self._is_mine(process)]

    def _is_mine(self, process: psutil.Process) -> bool:
        if process.pid == os.getpid():
            return False
        with contextlib.suppress(psutil.Error):
            return bool(process.environ().get(MARK) == self._mark)
        return False

    def _left_files(self) -> Iterator[Path]:
        """Yield sockets and notes of workers that ended agents should have removed."""
        for agent in self.agents.values():
            yield from (agent.state / "workers").glob("*")
            yield from agent.state.glob("*.sock")


@contextlib.contextmanager
def divided_among(
    cores: Sequence[int],
    model: Path,
    name: str,
    *,
    python: str = sys.executable,
    **options: object,
) -> Iterator[LiveCluster]:
    """Run an agent on each of ``cores``, with the model divided among all of them; the first one
    coordinates. Raise ``RuntimeError`` if one of them has no stage.
    """
    with (
        tempfile.TemporaryDirectory() as directory,
        LiveCluster(Path(directory), python=python) as cluster,
    ):
        for number, core in enumerate(cores):
            cluster.start(number, core=core)
        cluster.await_members()
        deployed = cluster.deploy(cluster.agents[0], str(model.resolve()), name, **options)
        if len(deployed["stages"]) != len(cores):
            raise RuntimeError(f"{len(deployed['stages'])} stages instead of {len(cores)}")
        yield cluster


def own_cores(number: int) -> list[int]:
    """Return ``number`` cores that this process may use; they repeat if there are fewer."""
    return list(itertools.islice(itertools.cycle(sorted(os.sched_getaffinity(0))), number))


def wait_until(condition: Callable[[], bool], *, within: float, what: str) -> float:
    """Wait for ``condition``; the seconds it took. Raises ``RuntimeError`` after ``within``."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > within:
            raise RuntimeError(f"not within {within:g} s: {what}")
        time.sleep(_POLL_SECONDS)
    return time.monotonic() - start


def _is_worker(process: psutil.Process) -> bool:
    return WORKER_MODULE in _command(process)


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []
