"""What installers take, by tags; the expectations are from the specifications."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.portability.linking import a_host

from potluck.portability.hosts.host import HostPython
from potluck.portability.wheels.file import Distribution
from potluck.portability.wheels.tags import (
    install_finding,
    policy_glibc,
    promised_glibc,
    tag_ranks,
)


def a_distribution(*tags: str, requires_python: str = "") -> Distribution:
    return Distribution(
        name="pack", version="1.0", tags=tags, requires_python=requires_python, requires=()
    )


@pytest.mark.parametrize(
    ("platform", "machine", "libc", "version", "is_taken"),
    [
        ("manylinux_2_17_x86_64", "x86_64", "glibc", (2, 17), True),
        ("manylinux_2_17_x86_64", "x86_64", "glibc", (2, 36), True),
        ("manylinux_2_28_x86_64", "x86_64", "glibc", (2, 27), False),
        ("manylinux2014_x86_64", "x86_64", "glibc", (2, 17), True),
        ("manylinux2014_x86_64", "x86_64", "glibc", (2, 12), False),
        ("manylinux1_x86_64", "x86_64", "glibc", (2, 12), True),
        ("manylinux1_aarch64", "aarch64", "glibc", (2, 36), False),  # there never was one
        ("manylinux2014_aarch64", "aarch64", "glibc", (2, 36), True),
        ("manylinux_2_17_aarch64", "x86_64", "glibc", (2, 36), False),
        ("manylinux_2_17_x86_64", "x86_64", "musl", (1, 2), False),
        ("musllinux_1_1_x86_64", "x86_64", "musl", (1, 2), True),
        ("musllinux_1_2_x86_64", "x86_64", "musl", (1, 1), False),
        ("musllinux_1_2_x86_64", "x86_64", "glibc", (2, 36), False),
        ("linux_x86_64", "x86_64", "glibc", (2, 36), True),
        ("any", "riscv64", "glibc", (2, 36), True),
        ("win_amd64", "x86_64", "glibc", (2, 36), False),
    ],
)
def test_platforms(
    platform: str, machine: str, libc: str, version: tuple[int, int], is_taken: bool
) -> None:
    host = a_host(machine=machine, libc=libc, libc_version=version)
    finding = install_finding(a_distribution(f"py3-none-{platform}"), host)
    assert (finding is None) is is_taken
    if finding is not None:
        assert platform in finding.message
        assert machine in finding.message


@pytest.mark.parametrize(
    ("tag", "version", "is_free_threaded", "is_taken"),
    [
        ("cp311-cp311", (3, 11), False, True),
        ("cp311-cp311", (3, 12), False, False),
        ("cp38-abi3", (3, 12), False, True),
        ("cp312-abi3", (3, 11), False, False),
        ("py3-none", (3, 13), False, True),
        ("py2.py3-none", (3, 13), False, True),
        ("py2-none", (3, 13), False, False),
        ("cp37-none", (3, 11), False, False),
        ("cp313-cp313t", (3, 13), True, True),
        ("cp313-cp313", (3, 13), True, False),
        ("cp313-cp313t", (3, 13), False, False),
        ("cp315-abi3t", (3, 15), True, True),
        ("cp315-abi3t", (3, 16), True, True),
        ("cp315-abi3t", (3, 14), True, False),
        ("cp315-abi3t", (3, 15), False, False),
        ("pp310-pypy310_pp73", (3, 10), False, False),
    ],
)
def test_pythons(
    tag: str, version: tuple[int, int], is_free_threaded: bool, is_taken: bool
) -> None:
    interpreters, abi = tag.split("-")
    tags = [f"{each}-{abi}-manylinux_2_17_x86_64" for each in interpreters.split(".")]
    python = HostPython(
        implementation="cpython", version=version, is_free_threaded=is_free_threaded
    )
    host = replace(a_host(), python=python)
    assert (install_finding(a_distribution(*tags), host) is None) is is_taken
    nobody = replace(a_host(), python=None)
    assert install_finding(a_distribution(*tags), nobody) is None


def test_a_python_without_the_gil_says_why_it_does_not_take_abi3() -> None:
    python = HostPython(implementation="cpython", version=(3, 13), is_free_threaded=True)
    host = replace(a_host(), python=python)
    refusal = install_finding(a_distribution("cp39-abi3-manylinux_2_17_x86_64"), host)
    assert refusal is not None
    assert "cp39-abi3 is not compatible with cpython 3.13t" in refusal.message
    assert "another binary interface than abi3" in refusal.message
    refusal = install_finding(a_distribution("cp312-cp312-manylinux_2_17_x86_64"), host)
    assert refusal is not None
    assert "abi3" not in refusal.message


def test_the_order_of_tags_does_not_depend_on_the_version_of_packaging() -> None:
    python = HostPython(implementation="cpython", version=(3, 15), is_free_threaded=True)
    ranks = tag_ranks(python, ("manylinux_2_28_x86_64", "linux_x86_64"))
    assert [*ranks][:9] == [
        f"{tag}-{platform}"
        for tag in ("cp315-cp315t", "cp315-abi3t", "cp315-none", "cp314-abi3t", "cp313-abi3t")
        for platform in ("manylinux_2_28_x86_64", "linux_x86_64")
    ][:9]
    with_gil = tag_ranks(replace(python, is_free_threaded=False), ("linux_x86_64",))
    assert [*with_gil][:4] == [
        "cp315-cp315-linux_x86_64",
        "cp315-abi3-linux_x86_64",
        "cp315-none-linux_x86_64",
        "cp314-abi3-linux_x86_64",
    ]


def test_platform_and_python_must_go_together_in_one_tag() -> None:
    tags = ("cp310-cp310-manylinux_2_17_x86_64", "cp311-cp311-manylinux_2_17_aarch64")
    assert install_finding(a_distribution(*tags), a_host()) is not None


@pytest.mark.parametrize(
    ("wanted", "is_taken"),
    [
        *(("", True), (">=3.8", True), (">=3.12", False), (">=3.11.4", True), ("<3.11", False)),
        *(("==3.11.4", True), (">3.11.2,<3.11.9", True), ("!=3.11.0,<3.11.2", True)),
    ],
)
def test_requires_python(wanted: str, is_taken: bool) -> None:
    distribution = a_distribution("py3-none-any", requires_python=wanted)
    assert (install_finding(distribution, a_host()) is None) is is_taken


def test_what_cannot_be_read_forbids_nothing() -> None:
    distribution = a_distribution("py3-none-any", requires_python="three")
    assert install_finding(distribution, a_host()) is None


@pytest.mark.parametrize(
    ("platform", "glibc"),
    [
        ("manylinux_2_17_x86_64", (2, 17)),
        ("manylinux2014_aarch64", (2, 17)),
        ("manylinux1_x86_64", (2, 5)),
        ("linux_x86_64", None),
        ("manylinux_²_17_x86_64", None),
        (f"manylinux_2_{'1' * 5000}_x86_64", None),
        ("musllinux_1_2_x86_64", None),
        ("any", None),
    ],
)
def test_policies_of_platforms(platform: str, glibc: tuple[int, int] | None) -> None:
    assert policy_glibc(platform) == glibc


def test_the_oldest_of_several_tags_is_what_is_promised() -> None:
    tags = ("cp311-cp311-manylinux_2_28_x86_64", "cp311-cp311-manylinux2014_x86_64")
    assert promised_glibc(a_distribution(*tags)) == (2, 17)
    assert promised_glibc(a_distribution("py3-none-any")) is None
