"""A node's state directory: who it is, its secret, its certificate, what it left running.

node-id          16 hexadecimal digits, the same for ever
secret           of a node that is alone (0600)
tls/             PEM files for Zenoh
control.sock     where the command line reaches the agent
workers/PID      one file per running worker, holding when that process started
lock             held while an agent runs
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from potluck.cluster.trust.credentials import check_node_id
from potluck.errors import ParameterError, PotluckError, UsageError
from potluck.types.cluster import NodeId

_MAX_SOCKET_PATH_BYTES = 107
"""``sun_path`` of unix(7), which has room for 108 with the final zero."""


def default_state_directory(environ: Mapping[str, str]) -> Path:
    """``$XDG_STATE_HOME/potluck/node``, or the same below ``~/.local/state``."""
    base = environ.get("XDG_STATE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".local" / "state") / "potluck" / "node"
    except RuntimeError as error:
        raise UsageError(
            "there is no home directory for the node's state", hint="give --state DIRECTORY"
        ) from error


class StateDirectory:
    """The directory of one node; made if it is not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.control_socket = path / "control.sock"
        self.tls = path / "tls"
        self.secret = path / "secret"
        self._workers = path / "workers"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Own the directory.

        Raises ``UsageError`` if another agent does or the path is too long for a socket.
        """
        if len(os.fsencode(self.control_socket)) > _MAX_SOCKET_PATH_BYTES:
            raise UsageError(
                f"the path of the state directory is too long for a socket in it: {self.path}",
                hint="give a shorter one with --state",
            )
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._workers.mkdir(exist_ok=True)
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise PotluckError(
                f"the state directory {self.path} cannot be used: {error.strerror}",
                hint="give a directory on a writable disk with --state",
            ) from error
        with os.fdopen(descriptor):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UsageError(
                    f"an agent already runs with the state directory {self.path}",
                    hint="potluck down stops it; --state DIRECTORY gives a second one its own",
                ) from error
            yield

    def node_id(self) -> NodeId:
        """The node's id, made at the first start."""
        path = self.path / "node-id"
        with contextlib.suppress(FileNotFoundError):
            try:
                return check_node_id(path.read_text(encoding="ascii").strip())
            except (ParameterError, UnicodeDecodeError) as error:
                raise UsageError(
                    f"{path} does not hold a node id", hint="remove it, and the node gets a new one"
                ) from error
        node_id = NodeId(secrets.token_hex(8))
        path.write_text(node_id + "\n", encoding="ascii")
        return node_id

    def remember_worker(self, pid: int) -> None:
        """Note a worker, so that the next agent finds it should this one leave it behind."""
        with contextlib.suppress(psutil.NoSuchProcess):
            started = psutil.Process(pid).create_time()
            (self._workers / str(pid)).write_text(repr(started), encoding="ascii")

    def forget_worker(self, pid: int) -> None:
        """The worker has ended."""
        (self._workers / str(pid)).unlink(missing_ok=True)

    def end_leftover_workers(self) -> int:
        """End the workers of an earlier agent; returns how many there were.

        A process counts as one of them only if it started when the worker did.
        """
        num_ended = 0
        for path in self._workers.iterdir():
            with contextlib.suppress(psutil.NoSuchProcess, ValueError):
                process = psutil.Process(int(path.name))
                is_it = repr(process.create_time()) == path.read_text(encoding="ascii")
                if is_it and process.status() != psutil.STATUS_ZOMBIE:
                    process.send_signal(signal.SIGKILL)
                    num_ended += 1
            path.unlink()
        return num_ended
