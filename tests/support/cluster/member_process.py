"""A member in a process of its own: takes its settings as JSON, and says what happens on stdout.

It leaves at the end of its input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from support.cluster.members import Handlers, leaving, make_config

from potluck.cli.process_end import end_process, skip_finalization
from potluck.cluster.network.membership import Membership, Observer, PemPaths, parse_address
from potluck.errors import CallError, PotluckError
from potluck.types.cluster import NodeId


def _say(text: str) -> None:
    print(text, flush=True)


_WATCH_SECONDS = 0.02


async def _do(membership: Membership, command: str) -> None:
    method, node, request = command.split(" ", 2)
    if method == "watch":
        await _watch(membership, NodeId(node), float(request))
        return
    if method != "stream":
        await _take(membership, method, node, request)
        return
    method, _, request = request.partition(" ")
    try:
        await _take(membership, method, node, request)
    except CallError as error:
        _say(f"cut {type(error).__name__} {error.message}")
    else:
        _say("complete")


async def _watch(membership: Membership, node: NodeId, seconds: float) -> None:
    """Call ``echo`` again and again; say how many were answered, and the slowest of all."""
    end = time.monotonic() + seconds
    num_answered, num_failed, slowest = 0, 0, 0.0
    while (start := time.monotonic()) < end:
        try:
            await membership.call(node, "echo", b"well")
            num_answered += 1
        except CallError as error:
            _say(f"unanswered {node} {error.message}")
            num_failed += 1
        slowest = max(slowest, time.monotonic() - start)
        await asyncio.sleep(_WATCH_SECONDS)
    _say(f"watched {node} {num_answered} {num_failed} {slowest:.3f}")


async def _take(membership: Membership, method: str, node: str, request: str) -> None:
    async for _ in membership.call_stream(NodeId(node), method, request.strip().encode()):
        pass


async def _run(settings: dict[str, Any]) -> int:
    pem = settings["pem"]
    config = make_config(
        settings["number"],
        *map(parse_address, settings["connect"]),
        host=settings["host"],
        multicast=settings["multicast"],
        wire_version=settings["wire_version"],
        pem=None if pem is None else PemPaths(**{name: Path(text) for name, text in pem.items()}),
    )
    observer = Observer(
        on_join=lambda node: _say(f"join {node}"),
        on_leave=lambda node: _say(f"leave {node}"),
        on_incompatible=lambda node, version: _say(f"incompatible {node} {version}"),
    )
    try:
        membership = await Membership.open(config, methods=Handlers().table(), observer=observer)
    except PotluckError as error:
        _say(f"error {error.message}")
        return 1
    tasks = []
    async with leaving(membership):
        _say(f"open {membership.address}")
        while line := await asyncio.to_thread(sys.stdin.readline):
            tasks.append(asyncio.create_task(_do(membership, line)))
            _say("taking")
    await asyncio.gather(*tasks, return_exceptions=True)
    return 0


if __name__ == "__main__":
    skip_finalization()
    end_process(asyncio.run(_run(json.loads(sys.argv[1]))))
