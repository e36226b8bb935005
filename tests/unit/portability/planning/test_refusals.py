"""Why no wheel of a release is installed, in one reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from packaging.version import Version
from support.portability.folder_index import PYTHON, a_host

from potluck.portability.hosts.host import Host
from potluck.portability.planning.index import IndexFile, Release
from potluck.portability.planning.refusals import release_refusal
from potluck.portability.planning.target import Target


def reason(host: Host, *tags: str, requires_python: str = "") -> tuple[str, str]:
    files = tuple(
        IndexFile(filename=f"app-1.0-{tag}.whl", url=tag, requires_python=requires_python)
        for tag in tags
    )
    release = Release(version=Version("1.0"), wheels=files, sources=())
    why = release_refusal(release, Target(host, PYTHON))
    return why.kind, why.message


MUSL = replace(a_host(), libc="musl", libc_version=(1, 1))


@pytest.mark.parametrize(
    ("host", "tags", "kind", "message"),
    [
        (a_host(), (), "no-wheel", "there are no wheels, only source packages"),
        (
            a_host(machine="aarch64"),
            ("cp311-cp311-manylinux_2_17_x86_64", "cp311-cp311-win_amd64"),
            "no-machine",
            "there are no wheels for Linux on aarch64",
        ),
        (
            a_host(glibc=28),
            ("cp311-cp311-manylinux_2_34_x86_64", "cp311-cp311-manylinux_2_39_x86_64"),
            "glibc",
            "the wheels require glibc 2.34, but the host has glibc 2.28",
        ),
        (
            a_host(),
            ("cp311-cp311-musllinux_1_2_x86_64",),
            "libc",
            "the wheels are for musl, but the host has glibc 2.36",
        ),
        (
            MUSL,
            ("cp311-cp311-musllinux_1_2_x86_64", "cp311-cp311-manylinux_2_17_x86_64"),
            "musl",
            "the wheels require a newer musl, but the host has musl 1.1",
        ),
        (
            MUSL,
            ("cp311-cp311-manylinux_2_17_x86_64",),
            "libc",
            "the wheels are for glibc, but the host has musl 1.1",
        ),
        (
            a_host(python=(3, 13), is_free_threaded=True),
            ("cp313-cp313-manylinux_2_17_x86_64", "cp310-cp310-manylinux_2_17_x86_64"),
            "python-tag",
            "the wheels are for cp310-cp310, cp313-cp313, but the host has CPython 3.13t",
        ),
    ],
)
def test_the_nearest_reason(host: Host, tags: tuple[str, ...], kind: str, message: str) -> None:
    assert reason(host, *tags) == (kind, message)


def test_a_python_that_is_wanted() -> None:
    found = reason(a_host(python=(3, 6)), "py3-none-any", requires_python=">=3.9")
    assert found == ("python-required", "the wheels require Python >=3.9, but the host has 3.6")
