"""A node's state directory: its identity, secret and certificate, and records of its workers.

node-id          16 hexadecimal digits, permanent
secret           of a node without a cluster (0600)
membership.json  what an invited node got instead of the cluster's secret (0600)
invitations.json this node's invitations, and the members they added (0600)
tls/             PEM files for Zenoh
control.sock     where the command line reaches the agent
step-times.json  measured step times of its units (``measured_speeds``)
workers/PID      one file per running worker, which identifies its process
lock             held while an agent runs

Anyone who can write here decides which cluster the node belongs to and which processes its agent
kills. So a directory that others can write to is refused, and files are created for this user
only, whatever the umask.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from potluck.cluster.agent.worker_notes import WorkerNotes
from potluck.cluster.invitations.joined import JoinedCluster, read_joined, write_joined
from potluck.cluster.network.trust.credentials import Credentials, check_node_id
from potluck.cluster.network.trust.pem_files import PemPaths, pem_paths, write_pem_files
from potluck.cluster.network.trust.secret import Secret, own_secret
from potluck.errors import ParameterError, PotluckError, UsageError
from potluck.host.private_files import (
    folder_problem,
    make_private_folder,
    parent_problem,
    remove_drafts,
    replace_file,
)
from potluck.host.system import read_regular_file
from potluck.types.cluster import NodeId
from potluck.types.text import is_utf8

_log = logging.getLogger(__name__)

_MAX_SOCKET_PATH_BYTES = 107
"""The longest ``sun_path`` of unix(7), which has room for 108 bytes with the final zero."""

_MAX_NODE_ID_BYTES = 256

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def default_state_directory(environ: Mapping[str, str]) -> Path:
    """Return ``$XDG_STATE_HOME/potluck/node``, or the same below ``~/.local/state``."""
    base = environ.get("XDG_STATE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".local" / "state") / "potluck" / "node"
    except RuntimeError as error:
        raise UsageError(
            "there is no home directory for the node's state", hint="use --state DIRECTORY"
        ) from error


class StateDirectory:
    """The directory of one node; :meth:`locked` creates it if necessary."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.control_socket = path / "control.sock"
        self.secret = path / "secret"
        self.membership = path / "membership.json"
        self.invitations = path / "invitations.json"
        self.step_times = path / "step-times.json"
        self.workers = WorkerNotes(path / "workers")
        self._node_id = path / "node-id"
        self._tls = path / "tls"
        self.authority_file = pem_paths(self._tls).authority

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory.

        Raises ``UsageError`` if another agent has locked it, or if the path is not usable as a
        state directory: it is too long for a socket, not UTF-8, or writable by other users.
        """
        self._check_path()
        with self.errors("cannot be used"):
            self._make()
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor):
            with self.errors("cannot be locked"):
                os.fchmod(descriptor, 0o600)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise UsageError(
                        f"an agent is already running with the state directory {self.path}",
                        hint="deploy a model there with potluck deploy, stop it with potluck down, "
                        "or use another --state DIRECTORY",
                    ) from error
                remove_drafts(self.path)
                remove_drafts(self._tls)
            yield

    def node_id(self) -> NodeId:
        """Return the node's id, generated at the first start.

        An empty file, as left by a power failure, is filled again. Raises ``UsageError`` for a file
        with other contents.
        """
        with self.errors("cannot be read"):
            try:
                data = read_regular_file(self._node_id, _MAX_NODE_ID_BYTES)
            except FileNotFoundError:
                return self.renew_node_id()
        text = data.strip(b"\0 \t\r\n")
        if not text:
            _log.warning("%s was empty; this node gets a new id", self._node_id)
            return self.renew_node_id()
        try:
            return check_node_id(text.decode("ascii"))
        except (ParameterError, UnicodeDecodeError) as error:
            raise UsageError(
                f"{self._node_id} does not contain a node id",
                hint="delete it to give the node a new id",
            ) from error

    def renew_node_id(self) -> NodeId:
        """Replace the node's id with a new one."""
        node_id = NodeId(secrets.token_hex(8))
        with self.errors("cannot store the node's id"):
            replace_file(self._node_id, f"{node_id}\n".encode("ascii"))
        return node_id

    def joined(self) -> JoinedCluster | None:
        """Return the membership that the node received with an invitation; None if it has none."""
        with self.errors("cannot be read"):
            return read_joined(self.membership)

    def keep_joined(self, joined: JoinedCluster) -> None:
        """Store the membership that an invitation issued, for later starts."""
        with self.errors("cannot store the node's membership"):
            write_joined(self.membership, joined)
            replace_file(self._node_id, f"{joined.node_id}\n".encode("ascii"))

    def own_secret(self) -> Secret:
        """Return the secret of a node that was not given one, generated at the first call."""
        with self.errors("cannot store the secret"):
            return own_secret(self.secret)

    def write_credentials(self, credentials: Credentials) -> PemPaths:
        """Write the node's certificate and key for Zenoh."""
        with self.errors("cannot store the node's certificate"):
            return write_pem_files(credentials, self._tls)

    @contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Turn an ``OSError`` in the block into a ``PotluckError`` that says what failed, with a
        hint.
        """
        try:
            yield
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            is_full = error.errno in _NO_ROOM
            raise PotluckError(
                f"the state directory {self.path} {what}: {error.strerror or error}{where}",
                hint="free space on its disk, or use a directory on another one (--state)"
                if is_full
                else "use a directory on a writable disk (--state)",
            ) from error

    def _check_path(self) -> None:
        if len(os.fsencode(self.control_socket)) > _MAX_SOCKET_PATH_BYTES:
            raise UsageError(
                f"the path of the state directory is too long for a socket in it: {self.path}",
                hint="use a shorter one (--state)",
            )
        if not is_utf8(str(self.path)):
            raise UsageError(
                f"the path of the state directory is not UTF-8: {self.path}",
                hint="use another one (--state)",
            )

    def _make(self) -> None:
        """Create the directory and its folders so that nobody else can write to them.

        Existing ones are checked before their mode is set: others may have left something there.
        """
        if not self.path.exists():
            make_private_folder(self.path)
        self._refuse_untrusted()
        for folder in (self.workers.folder, self._tls):
            if folder.is_symlink():
                raise UsageError(f"{folder} is a symbolic link", hint="remove it")
            if folder.exists():
                self._refuse(folder, folder_problem(folder))
            make_private_folder(folder)

    def _refuse_untrusted(self) -> None:
        """Check both the path and its target: who can replace a symbolic link decides where it
        leads.
        """
        for path in (self.path.absolute(), self.path.resolve()):
            self._refuse(path, folder_problem(path))
            for parent in path.parents:
                self._refuse(parent, parent_problem(parent))

    def _refuse(self, folder: Path, problem: str | None) -> None:
        if problem is not None:
            raise UsageError(
                f"the state directory {self.path} is not safe from other users: {folder} {problem}",
                hint="make it writable by this user only (chown, chmod go-w), or use another one",
            )
