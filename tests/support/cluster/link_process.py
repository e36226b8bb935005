"""A member that measures its links, in a process of its own (see ``support.cluster.members``).

Prints ``open ADDRESS``, and answers each line of stdin with one line of JSON: its links' speeds for
``speeds``, how many threads and descriptors it has, and the CPU time that it used, for ``costs``.
It ends with its stdin.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support.cluster.members import opened

from potluck.cli.process_end import end_process, skip_finalization
from potluck.cluster.agent.links import Links
from potluck.cluster.background import Background
from potluck.cluster.network.edges.listener import EdgeEndpoint
from potluck.cluster.network.membership import (
    Address,
    MembershipConfig,
    MethodTable,
    Observer,
    parse_address,
)
from potluck.cluster.network.trust.authority import derive_authority, issue_credentials
from potluck.cluster.network.trust.pem_files import write_pem_files
from potluck.cluster.network.trust.secret import parse_secret
from potluck.types.cluster import NodeId


async def main(settings: dict[str, Any], directory: Path) -> None:
    """Take part until stdin ends."""
    node_id = NodeId(f"{settings['number']:016x}")
    host = settings["host"]
    credentials = issue_credentials(
        derive_authority(parse_secret(settings["secret"])), node_id, [host]
    )
    joined: list[NodeId] = []
    links: Links | None = None

    def on_join(node: NodeId) -> None:
        joined.append(node)
        if links is not None:
            links.joined(node)

    def on_leave(node: NodeId) -> None:
        joined.remove(node)
        if links is not None:
            links.left(node)

    paths = write_pem_files(credentials, directory)
    config = MembershipConfig(
        node_id=node_id,
        cluster_id="test",
        listen=Address(host=host, port=0),
        connect=tuple(map(parse_address, settings["connect"])),
        pem=paths,
    )
    methods = MethodTable(is_complete=False)
    background = Background()
    async with opened(
        config, methods=methods, observer=Observer(on_join=on_join, on_leave=on_leave)
    ) as membership:
        links = Links(
            membership,
            EdgeEndpoint(credentials=credentials, listen_host=host),
            spawn=background.spawn,
        )
        links.register(methods)
        methods.complete()
        for node in joined:
            links.joined(node)
        background.spawn(links.run())
        print(f"open {membership.address}", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(_answer(line.strip(), links)), flush=True)
        await links.close()
        await background.close()


def _answer(command: str, links: Links) -> Any:
    if command == "speeds":
        return [asdict(each) for each in links.speeds()]
    return {
        "threads": sorted(each.name for each in threading.enumerate()),
        "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "cpu_seconds": time.process_time(),
    }


if __name__ == "__main__":
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    skip_finalization()
    with TemporaryDirectory() as _directory:
        asyncio.run(main(json.loads(sys.argv[1]), Path(_directory)))
    end_process(0)
