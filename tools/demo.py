"""``make demo``: three agents on this machine share one model and answer a question over HTTP.

Everything is on loopback and in a temporary directory. The agents are ended and the directory is
removed however this ends: after the answer, after an error, and after Ctrl-C at any moment (exit
code 130). They run in sessions of their own, so that a Ctrl-C in the terminal reaches only this
program, which then ends them in order.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _end_early(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)  # nothing has been started yet


_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
if __name__ == "__main__":
    for _number in _ENDING_SIGNALS:  # before the imports, which take a moment
        signal.signal(_number, _end_early)

import asyncio  # noqa: E402
import http.client  # noqa: E402
import json  # noqa: E402
import socket  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from contextlib import contextmanager, suppress  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from potluck.cli.placing import result_of  # noqa: E402
from potluck.cli.report import figures_line  # noqa: E402
from potluck.cli.tables import stage_lines  # noqa: E402
from potluck.cluster.agent.state import StateDirectory  # noqa: E402
from potluck.cluster.network.trust.secret import generate_secret  # noqa: E402
from potluck.errors import PotluckError  # noqa: E402
from potluck.host.child_environment import SECRET_VARIABLE  # noqa: E402
from potluck.local import Timings  # noqa: E402
from potluck.types.quantities import format_seconds  # noqa: E402

NUM_AGENTS = 3
MODEL = "demo"
QUESTION = "Tell me a story about a little fox."
MAX_TOKENS = 300
SEED = 7

_START_SECONDS = 60.0
_END_SECONDS = 15.0
_POLL_SECONDS = 0.1
_ERROR_LINES = 20


class DemoError(Exception):
    """A failure of the demo, described in one line or several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """One agent: its process, its state directory, and the file with its output."""

    number: int
    process: subprocess.Popen[bytes]
    state: StateDirectory
    errors: Path

    def failure(self, what: str) -> DemoError:
        lines = self.errors.read_text(encoding="utf-8", errors="replace").splitlines()
        error_tail = "\n".join(f"  {line}" for line in lines[-_ERROR_LINES:]) or "  (nothing)"
        return DemoError(f"agent {self.number} {what}; it said:\n{error_tail}")


class _Agents:
    """The agents that were started; all of them end with the block that :meth:`opened` makes."""

    def __init__(self) -> None:
        self._environment = {**os.environ, SECRET_VARIABLE: generate_secret()}
        self._num_threads = max(1, len(os.sched_getaffinity(0)) // NUM_AGENTS)
        self._directory = Path()
        self.nodes: list[_Node] = []

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Have a directory for them, and nothing left at the end."""
        with tempfile.TemporaryDirectory(prefix="potluck-demo-") as directory:
            self._directory = Path(directory)
            try:
                yield
            finally:
                self.end()

    def start(self, *options: str) -> _Node:
        """Start one more; it is not ready yet."""
        number = len(self.nodes) + 1
        state = StateDirectory(self._directory / str(number))
        errors = self._directory / f"{number}.stderr"
        command = [sys.executable, "-m", "potluck", "up", "--state", str(state.path)]
        command += ["--http", "127.0.0.1:0", "--threads", str(self._num_threads), *options]
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        node = _Node(number=number, process=process, state=state, errors=errors)
        self.nodes.append(node)
        return node

    def end(self) -> None:
        """Ask all to end, then wait; one that takes too long is killed, and its workers with it."""
        for node in self.nodes:
            node.process.terminate()
        deadline = time.monotonic() + _END_SECONDS
        for node in self.nodes:
            try:
                node.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                node.process.kill()
                node.process.wait()
            if node.process.stdout is not None:
                node.process.stdout.close()

    def kill(self) -> None:
        """End all at once."""
        for node in self.nodes:
            node.process.kill()


async def _address(node: _Node) -> str:
    """Return the HTTP address that an agent prints when it is up."""
    output = node.process.stdout
    assert output is not None
    line = await asyncio.wait_for(asyncio.to_thread(output.readline), _START_SECONDS)
    if not line:
        node.process.wait()
        raise node.failure("did not start")
    return line.decode().strip()


async def _result(node: _Node, method: str, **params: object) -> dict[str, Any]:
    """Call an agent over its control socket, and return the result."""
    try:
        return await asyncio.to_thread(result_of, node.state, method, params)
    except PotluckError as error:
        hint = f"\nhint: {error.hint}" if error.hint else ""
        raise node.failure(f"could not {method}: {error.message}{hint}") from error


async def _wait_for_members(node: _Node, num_nodes: int) -> dict[str, Any]:
    """Wait until ``num_nodes`` nodes are ready, and return the cluster's state."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        state = await _result(node, "state")
        ready = [each for each in state["nodes"] if each["state"] == "ready"]
        if len(ready) == num_nodes:
            return state
        if time.monotonic() > deadline:
            raise node.failure(f"found {len(ready)} of {num_nodes} nodes")
        await asyncio.sleep(_POLL_SECONDS)


class _Chat:
    """One chat completion, streamed, on a connection of its own."""

    def __init__(self, address: str) -> None:
        host, port = address.removeprefix("http://").rsplit(":", 1)
        self._connection = http.client.HTTPConnection(host, int(port), timeout=_START_SECONDS)

    def close(self) -> None:
        """From any thread: an answer that is being read ends at once."""
        connection = self._connection.sock
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def stream(self, question: str, on_text: Callable[[str], None], max_tokens: int) -> Timings:
        """Ask; returns how long it took, as a client sees it."""
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": max_tokens,
            "seed": SEED,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        started_at = time.monotonic()
        self._connection.request(
            "POST",
            "/v1/chat/completions",
            body=json.dumps(body),
            headers={"Content-Type": "application/json"},
        )
        response = self._connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise DemoError(f"HTTP status {response.status}: {response.read().decode()}")
        first_at = last_at = started_at
        usage: dict[str, int] | None = None
        for event in _events(response):
            if "error" in event:
                raise DemoError(f"the answer broke off: {event['error']['message']}")
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                text = choice["delta"].get("content")
                if text:
                    last_at = time.monotonic()
                    first_at = last_at if first_at == started_at else first_at
                    on_text(text)
        if usage is None:
            raise DemoError("the answer broke off")
        return Timings(
            num_prompt_tokens=usage["prompt_tokens"],
            num_new_tokens=usage["completion_tokens"],
            prefill_seconds=first_at - started_at,
            decode_seconds=last_at - first_at,
        )


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the documents of a stream of server-sent events."""
    for line in response:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            yield json.loads(line.removeprefix(b"data: "))


async def _ask(address: str, question: str, on_text: Callable[[str], None], limit: int) -> Timings:
    chat = _Chat(address)
    try:
        return await asyncio.to_thread(chat.stream, question, on_text, limit)
    except (OSError, http.client.HTTPException) as error:
        raise DemoError(f"{address} broke off: {error}") from error
    finally:
        chat.close()


def _say(text: str = "", end: str = "\n") -> None:
    print(text, end=end, flush=True)


async def _demo(agents: _Agents) -> None:
    started_at = time.monotonic()
    _say(f"Starting {NUM_AGENTS} agents on this machine, as {NUM_AGENTS} nodes of a cluster …")
    first = agents.start()
    address = await _address(first)
    state = await _result(first, "state")
    others = [agents.start("--join", state["nodes"][0]["address"]) for _ in range(NUM_AGENTS - 1)]
    for node in others:
        await _address(node)
    await _wait_for_members(first, NUM_AGENTS)
    _say(f"They are up after {format_seconds(time.monotonic() - started_at)}.\n")

    started_at = time.monotonic()
    _say(f"Deploying {MODEL} over them …")
    deployment = await _result(first, "deploy", model=MODEL, objective="memory")
    for line in stage_lines(deployment):
        _say(line)
    _say(f"It is ready after {format_seconds(time.monotonic() - started_at)}.\n")

    _say(f"Asking {address}/v1/chat/completions: {QUESTION}\n")
    await _ask(address, QUESTION, lambda text: None, 2)  # warms up, as potluck bench does
    timings = await _ask(address, QUESTION, lambda text: _say(text, end=""), MAX_TOKENS)
    _say(f"\n\n{figures_line(timings, load_seconds=None)}")


def _how_to_go_on() -> str:
    path = Path(sys.executable).parent / "potluck"
    command = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    rows = (
        ("up", "a node of your own; then, in another terminal:"),
        ("deploy demo", "the same model, or MODEL: a directory, a .gguf file, a hub id"),
        ("ps", "nodes and stages"),
        ("up --lan", "a cluster of several machines: docs/guides/cluster.md"),
        ("run demo", "a chat without a cluster; Ctrl-D ends it"),
    )
    width = max(len(name) for name, _ in rows)
    lines = [f"  {command} {name.ljust(width)}  {what}" for name, what in rows]
    return "\n".join(["\nHow to go on:", *lines])


async def _main() -> int:
    loop = asyncio.get_running_loop()
    interrupted: asyncio.Future[int] = loop.create_future()
    agents = _Agents()

    def interrupt(number: int) -> None:
        if interrupted.done():
            agents.kill()
        else:
            interrupted.set_result(number)

    for number in _ENDING_SIGNALS:
        loop.add_signal_handler(number, interrupt, number)
    with agents.opened():
        running = asyncio.ensure_future(_demo(agents))
        both: set[asyncio.Future[Any]] = {running, interrupted}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        outcome = (await asyncio.gather(running, return_exceptions=True))[0]
        await asyncio.to_thread(agents.end)  # the loop goes on, for a second Ctrl-C
    if interrupted.done():
        print("\npotluck: interrupted; the agents have ended", file=sys.stderr)
        return 128 + interrupted.result()
    if isinstance(outcome, DemoError):
        print(f"potluck: the demo failed: {outcome}", file=sys.stderr)
        return 1
    if isinstance(outcome, BaseException):
        raise outcome
    _say(_how_to_go_on())
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))
