"""Members of a cluster under test: configurations, handlers, a log of events, child processes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.cluster.edges import SECRET
from support.processes.waiting import eventually

from potluck.cluster.network.membership import (
    Address,
    Membership,
    MembershipConfig,
    MethodTable,
    Observer,
)
from potluck.errors import PotluckError
from potluck.host.child_environment import child_environment
from potluck.types.cluster import NodeId
from potluck.types.speed import LinkSpeed

_ROOT = Path(__file__).resolve().parents[3]


def node_id(number: int) -> NodeId:
    return NodeId(f"{number:016x}")


@asynccontextmanager
async def leaving(membership: Membership) -> AsyncIterator[Membership]:
    """A member that leaves at the end of the block."""
    try:
        yield membership
    finally:
        await membership.close()


@asynccontextmanager
async def opened(config: MembershipConfig, **others: Any) -> AsyncIterator[Membership]:
    """A member from the beginning to the end of the block."""
    async with leaving(await Membership.open(config, **others)) as member:
        yield member


def own_threads() -> list[str]:
    """Threads that Potluck has started; those of Zenoh itself have other names."""
    return [each.name for each in threading.enumerate() if each.name.startswith("zenoh-")]


def make_config(
    number: int, *connect: Address, host: str = "127.0.0.1", **others: Any
) -> MembershipConfig:
    """Node ``number``, listening on a free port of ``host``."""
    return MembershipConfig(
        node_id=node_id(number),
        cluster_id="test",
        listen=Address(host=host, port=0),
        connect=connect,
        **others,
    )


@dataclass(slots=True)
class Handlers:
    """Methods to call, and what became of their handlers."""

    ended: list[str] = field(default_factory=list)
    num_echoed: int = 0
    num_ticking: int = 0

    def table(self) -> MethodTable:
        table = MethodTable()
        table.register("echo", self._echo)
        table.register("sleep", self._sleep)
        table.register("refuse", self._refuse)
        table.register("fail", self._fail)
        table.register("huge", self._huge)
        table.register_stream("count", self._count)
        table.register_stream("tick", self._tick)
        table.register_stream("pour", self._pour)
        table.register_stream("break", self._break)
        return table

    async def _echo(self, request: bytes) -> bytes:
        self.num_echoed += 1
        return request

    async def _sleep(self, request: bytes) -> bytes:
        try:
            await asyncio.sleep(float(request))
        except asyncio.CancelledError:
            self.ended.append("sleep")
            raise
        return b"slept"

    async def _refuse(self, request: bytes) -> bytes:
        raise PotluckError("the model is not here", hint="copy it first")

    async def _fail(self, request: bytes) -> bytes:
        raise KeyError("an internal detail")

    async def _huge(self, request: bytes) -> bytes:
        return bytes((1 << 20) + 1)

    async def _count(self, request: bytes) -> AsyncGenerator[bytes, None]:
        num_parts, part_bytes = json.loads(request)
        try:
            for index in range(num_parts):
                yield index.to_bytes(4, "little") + bytes(part_bytes)
        except GeneratorExit:
            self.ended.append("count")
            raise

    async def _tick(self, request: bytes) -> AsyncGenerator[bytes, None]:
        self.num_ticking += 1
        try:
            while True:
                yield b"tick"
                await asyncio.sleep(0.01)
        finally:
            self.ended.append("tick")

    async def _pour(self, request: bytes) -> AsyncGenerator[bytes, None]:
        interval_seconds, part_bytes = json.loads(request)
        try:
            while True:
                yield bytes(part_bytes)
                await asyncio.sleep(interval_seconds)
        finally:
            self.ended.append("pour")

    async def _break(self, request: bytes) -> AsyncGenerator[bytes, None]:
        yield b"first"
        raise PotluckError("the disk is full", hint="")


@dataclass(slots=True)
class Events:
    """What an observer was told, in order."""

    seen: list[str] = field(default_factory=list)

    def observer(self) -> Observer:
        return Observer(
            on_join=lambda node: self.seen.append(f"join {node}"),
            on_leave=lambda node: self.seen.append(f"leave {node}"),
            on_incompatible=lambda node, version: self.seen.append(
                f"incompatible {node} {version}"
            ),
        )


class ChildMember:
    """A member in a process of its own, which is told things on its stdin; killed at the end."""

    leave_seconds = 10.0

    def __init__(self, module: str, settings: object, prefix: Sequence[str]) -> None:
        paths = os.pathsep.join((str(_ROOT / "src"), str(_ROOT / "tests")))
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", module, json.dumps(settings, default=str)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment({**os.environ, "PYTHONPATH": paths}),
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def say(self, command: str) -> None:
        self.stdin.write(command + "\n")
        self.stdin.flush()

    def leave(self) -> int:
        """Let the member close and its process end; the exit status."""
        self.stdin.close()
        return self.process.wait(self.leave_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        self.stdin.close()
        self.stdout.close()


class MemberProcess(ChildMember):
    """``support.cluster.member_process``.

    ``say`` has it take a stream, or call a node again and again: ``METHOD NODE REQUEST`` takes that
    stream; ``stream NODE METHOD REQUEST`` says, too, how it ended: ``complete``, or ``cut ERROR
    MESSAGE``. ``watch NODE SECONDS`` calls ``echo`` for so long, and then says ``watched NODE
    NUM_ANSWERED NUM_FAILED SLOWEST_SECONDS``.
    """

    leave_seconds = 5.0

    def __init__(self, config: MembershipConfig, *, prefix: Sequence[str] = ()) -> None:
        settings = {
            "number": int(config.node_id, 16),
            "connect": [str(address) for address in config.connect],
            "host": config.listen.host,
            "multicast": config.multicast,
            "wire_version": config.wire_version,
            "pem": None if config.pem is None else asdict(config.pem),
        }
        super().__init__("support.cluster.member_process", settings, prefix)
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def lines(self) -> list[str]:
        """What the member has said: ``open ADDRESS``, ``join ID``, ``error MESSAGE`` …"""
        with self._news:
            return list(self._lines)

    def expect(self, start: str, *, within: float) -> str:
        """The rest of the first line that begins with ``start``."""
        found: list[str] = []

        def is_there() -> bool:
            found[:] = [line for line in self._lines if line.startswith(start)]
            return bool(found)

        with self._news:
            if not self._news.wait_for(is_there, within):
                raise AssertionError(f"no {start!r} within {within} s, only {self._lines}")
        return found[0].removeprefix(start).strip()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.process.kill()
        self._reader.join()
        super().__exit__(kind, error, traceback)

    def _read(self) -> None:
        for line in self.stdout:
            with self._news:
                self._lines.append(line.strip())
                self._news.notify_all()


class LinkMember(ChildMember):
    """``support.cluster.link_process``."""

    def __init__(
        self, number: int, *connect: str, host: str = "127.0.0.1", prefix: Sequence[str] = ()
    ) -> None:
        self.node_id = NodeId(f"{number:016x}")
        settings = {"number": number, "connect": connect, "host": host, "secret": SECRET}
        super().__init__("support.cluster.link_process", settings, prefix)
        first = self.stdout.readline()
        if not first.startswith("open "):
            self.__exit__(None, None, None)
            raise AssertionError(f"member {number} said {first!r}")
        self.address = first.removeprefix("open ").strip()

    def speeds(self) -> dict[NodeId, LinkSpeed]:
        """Its links, by the node they lead to."""
        return {each["node_id"]: LinkSpeed(**each) for each in self._ask("speeds")}

    def costs(self) -> dict[str, Any]:
        """Its threads, how many descriptors it has, and the CPU time it has used."""
        found: dict[str, Any] = self._ask("costs")
        return found

    def speed_to(
        self,
        other: LinkMember,
        *,
        within: float = 10,
        such: Callable[[LinkSpeed], bool] = lambda _: True,
    ) -> LinkSpeed:
        """The link to another member, once it was measured, and is ``such``."""
        found: list[LinkSpeed] = []

        def is_measured() -> bool:
            found[:] = [each for node, each in self.speeds().items() if node == other.node_id]
            return bool(found) and such(found[0])

        eventually(is_measured, within=within, what=f"the link to node {other.node_id} is measured")
        return found[0]

    def _ask(self, command: str) -> Any:
        self.say(command)
        return json.loads(self.stdout.readline())
