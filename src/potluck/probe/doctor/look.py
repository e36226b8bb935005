"""Collect the data that the checks need in addition to the probe's report.

Nothing is changed or sent: the datagram that tests multicast has a time to live of 0, so it does
not leave the machine.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import re
import secrets
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from potluck.probe.doctor.case import Folder, LocalNetwork, Port, User
from potluck.probe.doctor.multicast import (
    GROUP,
    MAX_DATAGRAM_BYTES,
    NUM_NONCE_BYTES,
    PORT,
    nonce_of,
    open_multicast_receiver,
    send_datagram,
)
from potluck.probe.fingerprint import installed_software
from potluck.probe.machine.system import System
from potluck.types.backend import BackendSpec

_ANY = "0.0.0.0"
_LOOP_SECONDS = 0.5


def inspect_user() -> User:
    """Return the user who runs this process."""
    user_id = os.geteuid()
    try:
        name = pwd.getpwuid(user_id).pw_name
    except KeyError:  # containers may use ids without a user
        name = str(user_id)
    groups = {os.getegid(), *os.getgroups()}
    return User(name=name, is_root=user_id == 0, groups=frozenset(map(_group_name, groups)))


def _group_name(group_id: int) -> str:
    try:
        return grp.getgrgid(group_id).gr_name
    except KeyError:
        return str(group_id)


def missing_packages(backends: Sequence[BackendSpec]) -> tuple[str, ...]:
    """Return the packages that backends need but that are not installed, without duplicates."""
    software = installed_software("", tuple(name for each in backends for name in each.packages))
    return tuple(dict.fromkeys(name for name, version in software.packages if not version))


def inspect_folder(system: System, path: Path, *, purpose: str, needed_bytes: int) -> Folder | None:
    """Return a directory, or its nearest existing parent. None if it cannot be examined."""
    path = path.absolute()
    try:
        there = next(each for each in (path, *path.parents) if each.exists()).resolve()
        disk = os.statvfs(there)
    except OSError:
        return None
    mount_point, file_system = _mount(system, there)
    return Folder(
        purpose=purpose,
        path=path,
        needed_bytes=needed_bytes,
        free_bytes=disk.f_bavail * disk.f_frsize,
        file_system=file_system,
        mount_point=mount_point,
        is_writable=there.is_dir() and os.access(there, os.W_OK | os.X_OK),
        is_read_only=bool(disk.f_flag & os.ST_RDONLY),
    )


def _mount(system: System, path: Path) -> tuple[str, str]:
    """Return the mount point and type of the file system of ``path`` (proc_pid_mountinfo(5))."""
    found = ("/", "")
    for line in (system.text(system.proc / "self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        fields, file_system = before.split(), after.split()
        if len(fields) < 5 or not file_system:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        if path.is_relative_to(point) and len(point) >= len(found[0]):
            found = (point, file_system[0])  # a later mount hides an earlier one
    return found


def inspect_shared_memory(system: System) -> int | None:
    """Return the size of /dev/shm."""
    try:
        disk = os.statvfs(system.dev / "shm")
    except OSError:
        return None
    return disk.f_blocks * disk.f_frsize


def inspect_network(address: str, *, lan_port: int, http_port: int) -> LocalNetwork:
    """Return whether an agent could listen, and whether multicast works at ``address``.

    ``address`` is this machine's own on the network, empty without one.
    """
    lan = Port(
        number=lan_port,
        purpose="other nodes (--lan)",
        option=f"--lan --listen {address or 'HOST'}:{_free_port(_ANY, lan_port)}",
        problem=_listen_problem(_ANY, lan_port),
    )
    loopback = "127.0.0.1"
    http = Port(
        number=http_port,
        purpose="clients (--http)",
        option=f"--http {loopback}:{_free_port(loopback, http_port)}",
        problem=_listen_problem(loopback, http_port),
    )
    problem = _loop_problem(address) if address else ""
    return LocalNetwork(address=address, ports=(lan, http), multicast_problem=problem)


def _free_port(host: str, taken: int) -> int:
    """Return a free port near ``taken``; 0, which means any, if there is none."""
    numbers = range(taken + 2, taken + 20)
    return next((number for number in numbers if not _listen_problem(host, number)), 0)


def _listen_problem(host: str, port: int) -> str:
    """Return why nothing can listen there now. Binding is enough to find out."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            return "in use by another program" if taken else (error.strerror or str(error)).lower()
    return ""


def _loop_problem(address: str) -> str:
    """Return why a local datagram does not come back on an interface."""
    nonce = secrets.token_bytes(NUM_NONCE_BYTES)
    try:
        with open_multicast_receiver(address) as ear:
            send_datagram(address, nonce, hops=0)
            deadline = time.monotonic() + _LOOP_SECONDS
            while (left := deadline - time.monotonic()) > 0:
                ear.settimeout(left)
                if nonce_of(ear.recv(MAX_DATAGRAM_BYTES)) == nonce:
                    return ""
    except TimeoutError:
        pass
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return f"a datagram to {GROUP}, UDP port {PORT}, does not come back"
