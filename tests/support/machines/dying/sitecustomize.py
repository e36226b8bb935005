"""Makes an agent or a worker kill itself at a point of the protocol, when a file says so.

Python imports this by itself where it is on the path. ``DIE_AT`` names a folder: a file
``agent-before_send`` there kills the agent's process with ``SIGKILL`` the next time that it is
about to send a frame to a stage, ``worker-after_send`` a worker that has just sent one. The file
is removed first, so that the process that is started instead lives.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def _role() -> str | None:
    arguments = sys.orig_argv
    if "potluck.cluster.worker" in arguments:
        return "worker"
    return "agent" if "potluck" in arguments and "up" in arguments else None


def _install(folder: Path, role: str) -> None:
    from potluck.cluster.network.edges.edge import OutgoingEdge

    send = OutgoingEdge.send

    def die_if_requested(point: str) -> None:
        try:
            (folder / f"{role}-{point}").unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def send_or_die(self: OutgoingEdge, *arguments: object, **options: object) -> object:
        die_if_requested("before_send")
        result = send(self, *arguments, **options)  # type: ignore[arg-type]
        die_if_requested("after_send")
        return result

    OutgoingEdge.send = send_or_die  # type: ignore[method-assign,assignment]


if "DIE_AT" in os.environ and (_found := _role()) is not None:
    _install(Path(os.environ["DIE_AT"]), _found)
