"""The oldest policy that files keep, and what a tag says instead. Facts are those of the PEPs."""

from __future__ import annotations

import pytest
from support.portability.linking import an_elf, undefined

from potluck.portability.elf.file import ElfFile
from potluck.portability.linking.object_tree import ObjectTree
from potluck.portability.linking.promises import (
    Glibc,
    Minimum,
    Promise,
    minimum,
    policies_for,
    promise,
    systems_with,
)


def least(**objects: ElfFile) -> Minimum:
    found = minimum(ObjectTree(objects), "x86_64")
    assert found is not None
    return found


def an_extension(*wants: str, library: str = "libc.so.6") -> ElfFile:
    return an_elf(needed=["libc.so.6", library], wants=[undefined(each, library) for each in wants])


@pytest.mark.parametrize(
    ("library", "wanted", "glibc"),
    [
        ("libc.so.6", "malloc@GLIBC_2.2.5", (2, 5)),
        ("libc.so.6", "memcpy@GLIBC_2.14", (2, 17)),
        ("libc.so.6", "clock@GLIBC_2.17", (2, 17)),
        ("libc.so.6", "stat@GLIBC_2.33", (2, 34)),
        ("libstdc++.so.6", "f@GLIBCXX_3.4.19", (2, 17)),
        ("libstdc++.so.6", "f@CXXABI_1.3.7", (2, 17)),
        ("libgcc_s.so.1", "f@GCC_4.8.0", (2, 17)),
        ("ld-linux-x86-64.so.2", "_dl_find_object@GLIBC_2.35", (2, 35)),
    ],
)
def test_versions_set_the_floor(library: str, wanted: str, glibc: Glibc) -> None:
    found = least(a=an_extension(wanted, library=library))
    assert found.glibc == glibc
    assert found.platform == f"manylinux_{glibc[0]}_{glibc[1]}_x86_64"
    assert (wanted.partition("@")[2], "a") in found.because
    assert found.outside == ()


def test_the_newest_version_of_all_files_counts() -> None:
    found = least(
        a=an_extension("malloc@GLIBC_2.2.5"),
        b=an_extension("stat@GLIBC_2.33", "dlopen@GLIBC_2.34", "malloc@GLIBC_2.2.5"),
    )
    assert found.glibc == (2, 34)
    assert found.because == (("GLIBC_2.33", "b"), ("GLIBC_2.34", "b"))


def test_weak_versions_do_not_count() -> None:
    elf = an_elf(needed=["libc.so.6"], weak_versions=[("libc.so.6", "GLIBC_2.34")])
    assert least(a=elf).glibc == (2, 5)


def test_a_version_of_no_policy() -> None:
    found = least(a=an_extension("f@GLIBC_2.99", "malloc@GLIBC_2.2.5"))
    assert found.glibc is None
    assert found.platform == "linux_x86_64"
    assert found.because == (("GLIBC_2.99", "a"),)


def test_libraries_of_the_wheel_do_not_count() -> None:
    found = least(
        a=an_extension("f@GLIBCXX_3.4.99", library="libstdc++.so.6"),
        **{"pack.libs/libstdc++.so.6": an_elf(soname="libstdc++.so.6")},
    )
    assert found.glibc == (2, 5)


def test_libraries_outside_of_all_policies() -> None:
    elf = an_elf(needed=["libc.so.6", "libcuda.so.1", "libcudart.so.12"])
    assert least(a=elf).outside == ("libcuda.so.1", "libcudart.so.12")
    brought = minimum(ObjectTree({"a": elf}), "x86_64", brought=["libcudart.so.12"])
    assert brought is not None
    assert brought.outside == ("libcuda.so.1",)


def test_the_c_library_comes_with_no_other_wheel() -> None:
    tree = ObjectTree({"a": an_extension("f@GLIBC_2.28", library="libc.so.6")})
    found = minimum(tree, "x86_64", brought=["libc.so.6"])
    assert found is not None
    assert found.glibc == (2, 28)


def test_files_for_other_machines_and_other_c_libraries() -> None:
    tree = ObjectTree({"a": an_elf(needed=["libc.musl-x86_64.so.1"]), "b": an_elf(needed=["x"])})
    assert minimum(tree, "x86_64") is None
    assert minimum(tree, "aarch64") is None
    assert minimum(tree, "pdp11") is None


@pytest.mark.parametrize(
    ("promised", "needed", "expected"),
    [
        ((2, 17), (2, 17), Promise.KEPT),
        ((2, 17), (2, 31), Promise.BROKEN),
        ((2, 17), None, Promise.BROKEN),
        ((2, 28), (2, 27), Promise.MODEST),
        (None, (2, 17), Promise.NONE),
    ],
)
def test_promises(promised: Glibc | None, needed: Glibc | None, expected: Promise) -> None:
    least = Minimum(machine="x86_64", glibc=needed, because=(), outside=())
    assert promise(promised, least) is expected


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_table_of_policies(machine: str) -> None:
    policies = policies_for(machine)
    assert policies is not None
    assert (2, 17) in policies.known
    assert list(policies.known) == sorted(policies.known)
    assert set(policies.versions.values()) <= set(policies.known)
    for version, policy in policies.versions.items():
        numbers = version.removeprefix("GLIBC_").split(".")
        if version.startswith("GLIBC_2.") and numbers[1].isdigit():
            first = next((each for each in policies.known if each >= (2, int(numbers[1]))), None)
            # CentOS 7 for aarch64 has glibc 2.17 with what 2.18 added.
            assert policy == first or (machine, version) == ("aarch64", "GLIBC_2.18"), version


def test_systems_that_are_new_enough() -> None:
    assert "Debian 12" in systems_with((2, 34))
    assert "Ubuntu 22.04" in systems_with((2, 35))
    assert systems_with((2, 99)) == ()
