"""Records of the workers that an agent has started, with which the next agent finds those left
over.

A process id alone is not enough: the kernel reuses it, another container has one of the same
number, and a record may have been written by somebody else, or copied with its directory. So a
record identifies a process fully, and a process is killed only if it matches the record except for
its parent, which has exited; if it belongs to this user; and if its command line is a worker's.
"""

from __future__ import annotations

import logging
import os
import signal
from contextlib import suppress
from pathlib import Path

import msgspec

from potluck.cluster.agent.process_stat import process_stat
from potluck.errors import EngineError
from potluck.host.private_files import replace_file
from potluck.host.system import read_regular_file
from potluck.host.uname import boot_id

_log = logging.getLogger(__name__)

WORKER_MODULE = "potluck.cluster.worker"

_PROC = Path("/proc")
_MAX_NOTE_BYTES = 2**16


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies a process.

    ``start_ticks`` is since the boot ``boot_id``; ``pid_namespace`` is the one in which ``pid``
    counts (``namespaces(7)``); ``uid`` is the effective one. ``parent`` is the process that started
    it, or adopted it when that one exited.
    """

    pid: int
    parent: int
    boot_id: str
    pid_namespace: str
    start_ticks: int
    uid: int
    command_line: tuple[str, ...]

    @property
    def is_worker(self) -> bool:
        """Whether the process runs this package's worker module."""
        return ("-m", WORKER_MODULE) in zip(self.command_line, self.command_line[1:], strict=False)


def process_facts(pid: int) -> ProcessFacts | None:
    """Return the facts of a running process; None if there is none, or it has exited."""
    stat = process_stat(pid)
    if stat is None or stat.has_ended:
        return None
    folder = _PROC / str(pid)
    try:
        return ProcessFacts(
            pid=pid,
            parent=stat.parent,
            boot_id=boot_id(),
            pid_namespace=os.readlink(folder / "ns" / "pid"),  # noqa: PTH115 - not a path
            start_ticks=stat.start_ticks,
            uid=folder.stat().st_uid,
            command_line=_command_line(folder),
        )
    except (OSError, ValueError):
        return None


class WorkerNotes:
    """The records in ``folder``: one file per worker, named by its process id."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def remember(self, pid: int) -> None:
        """Record a worker that was just started; does nothing if it has already exited.

        Raises ``EngineError`` if the record cannot be written.
        """
        facts = process_facts(pid)
        if facts is None:
            return
        path = self.folder / str(pid)
        try:
            # After a power failure there are no workers to find.
            replace_file(path, msgspec.json.encode(facts), is_durable=False)
        except OSError as error:
            raise EngineError(
                f"cannot record a worker in {self.folder}: {error.strerror}",
                hint="make the state directory writable, and free space on its disk",
            ) from error

    def forget(self, pid: int) -> None:
        """Remove the record of a worker that has exited."""
        _remove(self.folder / str(pid))

    def end_leftovers(self) -> int:
        """Kill the recorded workers, and remove all records; return how many there were."""
        num_ended = 0
        for path in self._paths():
            num_ended += _end(path)
            _remove(path)
        return num_ended

    def _paths(self) -> list[Path]:
        try:
            return sorted(self.folder.iterdir())
        except OSError as error:
            _log.warning("cannot read the records of workers: %s", error)
            return []


def _end(path: Path) -> bool:
    """Kill the worker that a record is about; return whether there was one.

    Where the kernel supports it (Linux 5.3), the process is held by a descriptor first, so that the
    process that was checked is the one that is killed, even if it exits in between and its id is
    reused.
    """
    with suppress(OSError, ValueError, OverflowError):
        pid = int(path.name)
        try:
            descriptor = os.pidfd_open(pid)
        except (OSError, AttributeError):
            if _noted_worker(path) is None:
                return False
            os.kill(pid, signal.SIGKILL)
            return True
        try:
            if _noted_worker(path) is None:
                return False
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            return True
        finally:
            os.close(descriptor)
    return False


def _noted_worker(path: Path) -> ProcessFacts | None:
    """Return the running worker without an agent that a record is about, if any."""
    try:
        noted = msgspec.json.decode(read_regular_file(path, _MAX_NOTE_BYTES), type=ProcessFacts)
        pid = int(path.name)
    except (OSError, ValueError):  # msgspec's errors are ValueErrors
        return None
    found = process_facts(pid)
    if found is None or found.parent == noted.parent or noted.pid != pid:
        return None  # its parent, the agent that uses it, is still running
    if msgspec.structs.replace(found, parent=noted.parent) != noted:
        return None
    return found if found.is_worker and found.uid == os.geteuid() else None


def _command_line(folder: Path) -> tuple[str, ...]:
    data = (folder / "cmdline").read_bytes()
    return tuple(part.decode("utf-8", "replace") for part in data.split(b"\0"))


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:  # the next agent sees that it matches no worker
        _log.warning("cannot remove the record of a worker: %s", error)
