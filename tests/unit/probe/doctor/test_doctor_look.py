"""What the doctor gathers itself, on this machine; nothing leaves it."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest
from support.machines.doctor_cases import a_system

from potluck.host.system import System
from potluck.probe.doctor import look
from potluck.probe.doctor.multicast import (
    GROUP,
    MAX_DATAGRAM_BYTES,
    PORT,
    nonce_of,
    open_multicast_receiver,
    send_datagram,
)

LOOPBACK = "127.0.0.1"


def test_the_user() -> None:
    user = look.inspect_user()
    assert user.is_root == (os.geteuid() == 0)
    assert user.name
    assert user.groups


def test_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    point = tmp_path / "with blank"
    point.mkdir()
    mounts = (
        f"30 22 0:9 / {str(point).replace(' ', chr(92) + '040')} rw shared:1 - tmpfs none rw\n"
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "no sense\n"
    )
    system = a_system(tmp_path / "tree", {"proc/self/mountinfo": mounts})
    path = point / "a/b"
    folder = look.inspect_folder(system, path, purpose="x", needed_bytes=5)
    assert folder is not None
    assert (folder.path, folder.purpose, folder.needed_bytes) == (path, "x", 5)
    assert (folder.mount_point, folder.file_system) == (str(point), "tmpfs")
    assert folder.is_writable
    assert not folder.is_read_only
    there = os.statvfs(point)
    assert 0 < folder.free_bytes <= there.f_blocks * there.f_frsize
    other = look.inspect_folder(system, tmp_path, purpose="x", needed_bytes=5)
    assert other is not None
    assert (other.mount_point, other.file_system) == ("/", "ext4")


def test_a_file_in_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = look.inspect_folder(System(), tmp_path / "file/x", purpose="x", needed_bytes=0)
    assert folder is not None
    assert not folder.is_writable


def test_a_folder_within_one_that_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, stat = tmp_path / "closed", os.stat
    closed.mkdir()

    def refuse(path: Path, **options: bool) -> os.stat_result:
        if closed in Path(path).parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(os, "access", lambda path, _: path != closed)
    folder = look.inspect_folder(System(), closed / "a/b", purpose="x", needed_bytes=0)
    assert folder is not None
    assert not folder.is_writable


def test_shared_memory(tmp_path: Path) -> None:
    assert look.inspect_shared_memory(a_system(tmp_path)) is None
    (tmp_path / "dev/shm").mkdir(parents=True)
    assert (look.inspect_shared_memory(a_system(tmp_path)) or 0) > 0


def test_ports_that_are_free_and_that_are_taken() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        taken = server.getsockname()[1]
        with socket.create_server((LOOPBACK, 0)) as other:
            free = other.getsockname()[1]
        network = look.inspect_network(LOOPBACK, lan_port=taken, http_port=free)
    lan, http = network.ports
    assert lan.number == taken
    assert lan.problem == "in use by another program"
    assert lan.option.startswith(f"--lan --listen {LOOPBACK}:")
    assert http.problem == ""
    assert network.multicast_problem == ""


def test_multicast_at_an_address_that_is_not_there() -> None:
    network = look.inspect_network("192.0.2.1", lan_port=0, http_port=0)
    assert network.multicast_problem == "no such device"


def test_only_the_doctors_own_datagrams_count() -> None:
    with (
        open_multicast_receiver(LOOPBACK) as ear,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
    ):
        ear.settimeout(20)
        loopback = socket.inet_aton(LOOPBACK)
        other.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, loopback)
        other.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)
        other.sendto(b"a message of another program", (GROUP, PORT))
        assert nonce_of(ear.recv(MAX_DATAGRAM_BYTES)) is None
        send_datagram(LOOPBACK, b"0123456789abcdef", hops=0)
        assert nonce_of(ear.recv(MAX_DATAGRAM_BYTES)) == b"0123456789abcdef"
