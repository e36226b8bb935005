"""Another system's files are read with its own directory as the root, whatever links it has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.machines.machine_tree import machine_tree

from potluck.portability.hosts.root_files import RootFiles


@pytest.fixture
def files(tmp_path: Path) -> RootFiles:
    machine_tree(
        tmp_path / "root",
        {
            "etc/hostname": "board",
            "etc/zlast.conf": "",
            "etc/afirst.conf": "",
            "usr/lib/libz.so.1.3": b"zlib",
            "usr/lib/libz.so.1": Path("libz.so.1.3"),
            "lib": Path("usr/lib"),
            "usr/lib64": Path("/usr/lib"),
            "usr/lib/up": Path("../../../../etc/hostname"),
            "loop": Path("loop"),
            "ping": Path("/pong"),
            "pong": Path("/ping"),
            "outside": Path(tmp_path / "secret"),
        },
    )
    (tmp_path / "secret").write_text("not of this root")
    os.mkfifo(tmp_path / "root/pipe")
    return RootFiles(tmp_path / "root")


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("/", "/"),
        ("/etc/hostname", "/etc/hostname"),
        ("/lib/libz.so.1", "/usr/lib/libz.so.1.3"),
        ("/usr/lib64/libz.so.1", "/usr/lib/libz.so.1.3"),
        ("/usr/lib/up", "/etc/hostname"),
        ("/usr/../../etc/hostname", "/etc/hostname"),
        ("/loop", None),
        ("/ping", None),
        ("/outside", None),
        ("/absent/file", None),
        ("/etc/\0", None),
    ],
)
def test_links_lead_into_the_root(files: RootFiles, path: str, real: str | None) -> None:
    assert files.real_path(path) == real


def test_content_is_that_of_regular_files(files: RootFiles) -> None:
    assert files.text("/etc/hostname") == "board\n"
    assert files.content("/lib/libz.so.1") == b"zlib"
    for path in ("/pipe", "/outside", "/etc", "/loop", "/absent"):
        assert files.content(path) == b""
        assert files.mapped(path) is None


def test_files_are_mapped_as_they_are(files: RootFiles) -> None:
    data = files.mapped("/usr/lib64/libz.so.1")
    assert data is not None
    with data:
        assert data[:] == b"zlib"
    assert files.mapped("/etc/empty") is None


def test_patterns_and_names_are_of_one_directory(files: RootFiles) -> None:
    assert files.matches("/etc/*.conf") == ["/etc/afirst.conf", "/etc/zlast.conf"]
    assert files.matches("/absent/*.conf") == []
    assert files.names("/lib") == {"libz.so.1", "libz.so.1.3", "up"}
