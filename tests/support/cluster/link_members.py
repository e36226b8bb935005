"""Members that measure their links, each in a process of its own, on loopback or on a host."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from support.cluster.edges import SECRET
from support.cluster.members import ChildMember
from support.processes.waiting import eventually

from potluck.types.cluster import NodeId
from potluck.types.speed import LinkSpeed


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
