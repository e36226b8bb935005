"""Members that measure their links, each in a process of its own, on loopback or on a host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.cluster.edges import SECRET
from support.processes.waiting import eventually

from potluck.child_environment import child_environment
from potluck.types.cluster import NodeId
from potluck.types.speed import LinkSpeed

_ROOT = Path(__file__).resolve().parents[3]


class LinkMember:
    """``support.cluster.link_process``; killed at the end."""

    def __init__(
        self, number: int, *connect: str, host: str = "127.0.0.1", prefix: Sequence[str] = ()
    ) -> None:
        self.node_id = NodeId(f"{number:016x}")
        settings = {"number": number, "connect": connect, "host": host, "secret": SECRET}
        paths = os.pathsep.join((str(_ROOT / "src"), str(_ROOT / "tests")))
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "support.cluster.link_process", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment({**os.environ, "PYTHONPATH": paths}),
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
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

    def leave(self) -> int:
        """Let it close and end; its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(10)

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
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()

    def _ask(self, command: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())
