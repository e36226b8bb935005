"""Real agents (``potluck up``) with state directories of their own, on loopback or on hosts.

A :class:`Fleet` ends all that it started, whatever happens: agents by their process id, and the
workers that they noted in their state directories. ``agents_here`` runs some in this process.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

import openai
import psutil
import pytest
from support.machines.icds import NO_ICDS
from support.network.netns import Host
from support.processes.command import run_command
from support.processes.forked_commands import ForkedCommand, forking_server
from support.processes.waiting import eventually, until

from potluck.catalog.locate import DEMO_DIRECTORY
from potluck.cluster.agent.asking import ask
from potluck.cluster.agent.config import AgentConfig
from potluck.cluster.agent.service import Agent
from potluck.cluster.agent.state import StateDirectory
from potluck.cluster.agent.worker_notes import WorkerNotes
from potluck.cluster.network.acceptor.supervisor import ACCEPTOR_MODULE
from potluck.cluster.network.membership import Address
from potluck.cluster.network.trust.secret import generate_secret, parse_secret
from potluck.cluster.transfer.supervisor import TRANSFER_MODULE
from potluck.probe.cache import default_cache_path
from potluck.types.choices import DEFAULT_DRAFT

_ROOT = Path(__file__).resolve().parents[3]
_SOURCES = str(_ROOT / "src")
_START_SECONDS = 30.0
_END_SECONDS = 40.0

POTLUCK = (sys.executable, "-m", "potluck")
OTHER_WIRE_VERSION = 99
OTHER_VERSION = (
    sys.executable,
    "-c",
    "import potluck.types.cluster as cluster; "
    f"cluster.WIRE_VERSION = {OTHER_WIRE_VERSION}; "
    "from potluck.cli.main import main; main()",
)
"""Potluck as it would be with another wire version."""

Document = dict[str, Any]


def measured_cache(folder: Path) -> str:
    """Make ``folder`` a cache, an XDG_CACHE_HOME, of a machine that has been measured already."""
    cache = default_cache_path({"XDG_CACHE_HOME": str(folder)})
    assert cache is not None
    if not cache.exists():
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_bytes(_measurements())
    return str(folder)


@functools.cache
def _measurements() -> bytes:
    """What a probe has measured of this machine for an agent with one thread."""
    done = run_command("probe", "--measure", "--threads", "1", env=NO_ICDS)
    assert done.returncode == 0, done.stderr
    cache = default_cache_path(os.environ)
    assert cache is not None
    return cache.read_bytes()


def no_end() -> dict[str, int]:
    """A logit bias that keeps ``demo`` from ending its text."""
    generation = json.loads((DEMO_DIRECTORY / "generation_config.json").read_text("utf-8"))
    ends = generation["eos_token_id"]
    return {str(token): -100 for token in (ends if isinstance(ends, list) else [ends])}


class AgentProcess:
    """``potluck up`` in a process of its own: forked, unless there is a ``command``."""

    def __init__(
        self,
        number: int,
        directory: Path,
        environ: Mapping[str, str],
        arguments: Sequence[str],
        command: Sequence[str] = (),
        folder: Path | None = None,
        host: Host | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.number = number
        self.node_id = f"{number:016x}"
        self.state = directory / "state"
        self.state.mkdir(mode=0o700, exist_ok=True)
        (self.state / "node-id").write_text(self.node_id + "\n", encoding="ascii")
        self._output, self._log = directory / "output", directory / "log"
        self._environ = dict(environ)
        arguments = ["up", "--state", str(self.state), *arguments]
        self.process = self._start(command, arguments, folder, host)

    def _start(
        self,
        command: Sequence[str],
        arguments: Sequence[str],
        folder: Path | None,
        host: Host | None,
    ) -> subprocess.Popen[bytes] | ForkedCommand:
        if not command and self._environ["PYTHONPATH"] == _SOURCES:
            return forking_server().start(
                arguments,
                env=self._environ,
                stdout=self._output,
                stderr=self._log,
                folder=folder,
                namespace=None if host is None else host.namespace,
            )
        words = [*(command or POTLUCK), *arguments]
        with self._output.open("wb") as output, self._log.open("wb") as log:
            return subprocess.Popen(
                words if host is None else host.command(*words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                env=self._environ,
                cwd=folder,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        """What it wrote to stdout."""
        return self._output.read_text(encoding="utf-8")

    @property
    def log(self) -> str:
        """What it wrote to stderr."""
        return self._log.read_text(encoding="utf-8")

    @property
    def address(self) -> str:
        """Where other nodes join it."""
        found = re.search(r"other nodes reach it at (\S+)", self.log)
        assert found is not None, self.log
        return found[1]

    @property
    def url(self) -> str:
        """Its HTTP address."""
        return self.output.splitlines()[0]

    def await_up(self) -> Self:
        """Wait until it has said its addresses."""

        def is_up() -> bool:
            assert self.process.poll() is None, f"agent {self.number} ended: {self.log}"
            return "other nodes reach it at" in self.log

        eventually(is_up, within=_START_SECONDS, what=f"agent {self.number} is up")
        return self

    def ask(self, method: str, **params: object) -> Document:
        """What the command line would get from the agent's control socket."""
        *_, document = ask(self.state / "control.sock", method, params)
        result: Document = document["result"]
        return result

    def command_line(
        self, *arguments: str, timeout: float = 60, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run ``potluck ARGUMENTS --state …``, with ``environ`` in addition to the agent's."""
        env = {**self._environ, **(environ or {})}
        return run_command(*arguments, "--state", str(self.state), env=env, seconds=timeout)

    def deploy(
        self,
        model: str = "demo",
        *,
        name: str | None = None,
        context: int | None = None,
        cache: int | None = None,
        objective: str = "memory",
        prefix_cache: bool = True,
        draft: str = DEFAULT_DRAFT,
    ) -> Document:
        """Deploy over the cluster, by memory so that every agent gets a stage; return it ready."""
        return self.ask(
            "deploy",
            model=model,
            model_id=name,
            context_tokens=context,
            cache_tokens=cache,
            objective=objective,
            prefix_cache=prefix_cache,
            draft=draft,
        )

    def cluster(self) -> Document:
        """The cluster as this agent sees it."""
        return self.ask("state")

    def deployment(self, name: str) -> Document | None:
        """The deployment ``name`` as this agent knows it."""
        for deployment in self.cluster()["deployments"]:
            if deployment["model_id"] == name:
                found: Document = deployment
                return found
        return None

    def members(self) -> set[str]:
        """Nodes that this agent sees, itself too."""
        return {node["node_id"] for node in self.cluster()["nodes"]}

    def workers(self) -> set[int]:
        """Processes of its stages that run."""
        return {pid for pid in self._noted_workers() if psutil.pid_exists(pid)}

    def client(self, timeout: float = 60) -> openai.OpenAI:
        """The official client at this agent."""
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=timeout
        )

    def metric(self, name: str, **labels: str) -> float:
        """One figure of ``/metrics``."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as response:
            text = response.read().decode()
        for line in text.splitlines():
            found = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if found is None or found[1] != name:
                continue
            if dict(re.findall(r'(\w+)="([^"]*)"', found[2] or "")) == labels:
                return float(found[3])
        raise AssertionError(f"{name} {labels} is not among the metrics")

    def kill(self) -> None:
        """``kill -9``, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it as Ctrl-C or a service manager does; its exit status."""
        self.process.send_signal(number)
        return self.process.wait(_END_SECONDS)

    def clean_up(self) -> None:
        """Leave nothing of it running."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.kill()
        WorkerNotes(self.state / "workers").end_leftovers()

    def _noted_workers(self) -> set[int]:
        directory = self.state / "workers"
        return {int(path.name) for path in directory.iterdir()} if directory.exists() else set()


class Fleet:
    """Agents of one cluster; use it as a context manager."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.secret = generate_secret()
        self.agents: dict[int, AgentProcess] = {}
        self._starts = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self.agents.values():
            agent.clean_up()

    def environ(self, **others: str) -> dict[str, str]:
        """Of a user who has nothing set but the cluster's secret, and no OpenCL drivers; not what
        is empty here."""
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("POTLUCK_")
        }
        values = {
            **inherited,
            **NO_ICDS,
            "PYTHONPATH": _SOURCES,
            "XDG_CONFIG_HOME": str(self.directory / "config"),
            "POTLUCK_SECRET": self.secret,
            **others,
        }
        return {name: value for name, value in values.items() if value}

    def start(
        self,
        number: int,
        *arguments: str,
        join: AgentProcess | None = None,
        has_http: bool = True,
        memory_limit: str | None = None,
        prefix: Sequence[str] = (),
        command: Sequence[str] = (),
        folder: Path | None = None,
        host: Host | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> AgentProcess:
        """Start agent ``number`` with one thread; a state directory it had before is used again.

        It may work in a ``folder`` and on a ``host`` of its own.
        With ``prefix``, ``command`` (``POTLUCK``, say) or another ``PYTHONPATH`` a Python of its
        own starts, otherwise it is forked.
        """
        options = ["--threads", "1", *arguments]
        options += ["--http", "127.0.0.1:0"] if has_http else ["--no-http"]
        if join is not None:
            options += ["--join", join.address]
        if memory_limit is not None:
            options += ["--memory-limit", memory_limit]
        earlier = self.agents.get(number)
        if earlier is not None:
            assert earlier.process.poll() is not None, f"agent {number} still runs"
        self.agents[number] = AgentProcess(
            number,
            self.directory / f"agent-{number}",
            self.environ(**(environ or {})),
            options,
            [*prefix, *(command or POTLUCK)] if prefix else command,
            folder=folder,
            host=host,
        )
        return self.agents[number]

    def start_all(self, numbers: Sequence[int], **options: Any) -> list[AgentProcess]:
        """Start agents that join the first of the fleet; wait until all see all."""
        numbers = list(numbers)
        agents = []
        if not self.agents:
            agents.append(self.start(numbers.pop(0), **options).await_up())
        first = next(iter(self.agents.values()))
        agents += [self.start(number, join=first, **options) for number in numbers]
        for agent in agents:
            agent.await_up()
        self.await_members()
        return agents

    def live(self) -> list[AgentProcess]:
        """Agents whose process runs."""
        return [agent for agent in self.agents.values() if agent.process.poll() is None]

    def await_members(self, *, within: float = 20) -> None:
        """Wait until every live agent sees exactly the live agents."""
        everyone = {agent.node_id for agent in self.live()}
        for agent in self.live():
            eventually(
                lambda agent=agent: agent.members() == everyone,  # type: ignore[misc]
                within=within,
                what=f"agent {agent.number} sees {sorted(everyone)}",
            )


def await_ready(agent: AgentProcess, name: str, *, within: float = 20) -> Document:
    """The deployment ``name`` once ``agent`` knows it as ready."""
    found: list[Document] = []

    def is_ready() -> bool:
        deployment = agent.deployment(name)
        found[:] = [deployment] if deployment else []
        return bool(deployment and deployment["state"] == "ready")

    eventually(is_ready, within=within, what=f"{name} is ready at agent {agent.number}: {found}")
    return found[0]


def nodes_of(deployment: Document) -> set[str]:
    """The nodes that have a stage of it."""
    return {stage["node_id"] for stage in deployment["stages"]}


def acceptor_of(agent: AgentProcess) -> psutil.Process:
    """The process that accepts control connections for an agent."""
    (found,) = [
        child
        for child in psutil.Process(agent.pid).children()
        if ACCEPTOR_MODULE in command_of(child)
    ]
    return found


def transfers_of(agent: AgentProcess) -> list[psutil.Process]:
    """The process that passes model files on for an agent; none while it is started again."""
    return [
        child
        for child in psutil.Process(agent.pid).children()
        if TRANSFER_MODULE in command_of(child)
    ]


def command_of(process: psutil.Process) -> list[str]:
    """What a process was started as; empty once it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):  # or is a zombie, which is a kind of that
        return list(process.cmdline())
    return []


@contextlib.contextmanager
def stopped(agent: AgentProcess) -> Iterator[None]:
    """``SIGSTOP`` an agent and its workers until the block ends."""
    processes = [agent.pid, *agent.workers()]
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def await_transfers(agent: AgentProcess, name: str, nodes: Set[str]) -> dict[str, Document]:
    """Return what the nodes got, by node, once that is known of all of ``nodes``."""
    found: dict[str, Document] = {}

    def are_done() -> bool:
        deployment = agent.deployment(name)
        assert deployment is not None
        found.update({each["node_id"]: each for each in deployment["transfers"]})
        return nodes <= found.keys() and all(
            each["done_bytes"] == each["total_bytes"] for each in found.values()
        )

    eventually(are_done, within=10, what=f"the transfers are done: {found}")
    return found


@asynccontextmanager
async def agents_here(
    directory: Path, settings: Sequence[dict[str, Any]]
) -> AsyncIterator[list[Agent]]:
    """Run an agent with each of these settings, once all see each other and their units are tried.

    Their workers can import the backends of tests.
    """
    secret = parse_secret(generate_secret())
    running: list[Agent] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join((f"{_ROOT}/src", f"{_ROOT}/tests")))
        async with AsyncExitStack() as opened:
            for number, own in enumerate(settings):
                state = StateDirectory(directory / str(number))
                opened.enter_context(state.locked())
                config = AgentConfig(
                    secret=secret,
                    listen=Address(host="127.0.0.1", port=0),
                    connect=tuple(each.membership.address for each in running[:1]),
                    num_threads=1,
                    detectors=(),
                    **own,
                )
                running.append(await opened.enter_async_context(Agent.open(config, state)))
            await until(
                lambda: all(
                    each.hardware.report.is_complete
                    and len(each.membership.nodes()) == len(running) - 1
                    for each in running
                ),
                within=30,
                what="all agents see each other, and their units are tried",
            )
            yield running
