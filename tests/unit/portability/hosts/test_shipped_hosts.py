"""The hosts that come with Potluck are well formed, and say what is known of these systems."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.schemas import validate_document

import potluck
from potluck.errors import HostError
from potluck.portability.cuda.table import shipped_table
from potluck.portability.hosts.host import Definition, Host, HostLibrary
from potluck.portability.hosts.shipped import load_shipped_host, shipped_hosts
from potluck.portability.hosts.writing import MAX_DOCUMENT_BYTES

PACKAGE = Path(potluck.__file__).parent
FILES = sorted((PACKAGE / "portability/hosts/data").glob("*.json"))


def library(host: Host, soname: str) -> HostLibrary:
    (found,) = (each for each in host.libraries if each.soname == soname)
    return found


def answer(host: Host, soname: str, name: str, version: str) -> Definition:
    symbols = library(host, soname).symbols
    assert symbols is not None
    return symbols.defines(name, version)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_file_is_a_small_description_of_the_host_it_is_named_for(file: Path) -> None:
    document = json.loads(file.read_text())
    validate_document(document)
    assert len(json.dumps(document, separators=(",", ":"))) <= MAX_DOCUMENT_BYTES
    assert document["name"] == file.stem
    assert file.stem.endswith(document["machine"])


@pytest.mark.parametrize("name", shipped_hosts())
def test_every_name_loads_and_says_where_it_is_from(name: str) -> None:
    host = load_shipped_host(name)
    assert host.name == name
    assert host.origin
    if host.libc == "glibc":
        assert library(host, "libc.so.6").versions
    else:
        assert name.startswith("alpine-")


SYSTEMS = ("rhel-8", "rhel-9", "rocky-8", "rocky-9", "amazon-linux-2023", "alpine-3.20")


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_systems_without_an_archive_at_hand_are_said_not_to_be_complete(
    system: str, machine: str
) -> None:
    host = load_shipped_host(f"{system}-{machine}")
    assert not host.is_complete
    assert host.machine == machine
    assert host.python is not None
    assert "(" in host.origin  # a source


@pytest.mark.parametrize(
    ("name", "libc", "python", "newest_cxx"),
    [
        # The release notes of these systems: glibc, Python and GCC (GCC's manual has its versions).
        ("rhel-8-x86_64", (2, 28), (3, 6), "GLIBCXX_3.4.25"),
        ("rocky-9-aarch64", (2, 34), (3, 9), "GLIBCXX_3.4.29"),
        ("amazon-linux-2023-x86_64", (2, 34), (3, 9), "GLIBCXX_3.4.29"),
        ("raspberry-pi-os-12-aarch64", (2, 36), (3, 11), "GLIBCXX_3.4.30"),
    ],
)
def test_other_names_have_the_versions_of_these_systems(
    name: str, libc: tuple[int, int], python: tuple[int, int], newest_cxx: str
) -> None:
    host = load_shipped_host(name)
    assert host.python is not None
    assert (host.libc_version, host.python.version) == (libc, python)
    major, _, number = newest_cxx.rpartition(".")
    versions = library(host, "libstdc++.so.6").versions
    assert f"{major}.{int(number) + 1}" not in versions
    assert f"{major}.{int(number) - 1}" in versions


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_alpine_has_the_functions_of_musl_and_none_of_glibc(machine: str) -> None:
    host = load_shipped_host(f"alpine-3.20-{machine}")
    assert (host.libc, host.libc_version) == ("musl", (1, 2))
    name = f"libc.musl-{machine}.so.1"
    assert answer(host, name, "getaddrinfo", "") is Definition.PRESENT
    assert answer(host, name, "statx", "") is Definition.PRESENT  # since 1.2.5
    assert answer(host, name, "__memcpy_chk", "") is Definition.ABSENT


@pytest.mark.parametrize("name", [name for name in shipped_hosts() if name.startswith("debian")])
def test_installations_are_minimal(name: str) -> None:
    host = load_shipped_host(name)
    names = {each.soname for each in host.libraries} | host.other_libraries
    assert "libstdc++.so.6" in names  # which apt needs
    assert not {"libgomp.so.1", "libatomic.so.1"} & names


def test_what_was_to_be_described_is() -> None:
    distributions = ("debian-11", "debian-12", "debian-13")
    ubuntus = ("ubuntu-18.04", "ubuntu-20.04", "ubuntu-22.04", "ubuntu-24.04")
    policies = ("manylinux2014", "manylinux_2_17", "manylinux_2_28", "manylinux_2_34")
    for machine in ("x86_64", "aarch64"):
        names = (*distributions, *ubuntus)
        assert {f"{name}-{machine}" for name in names} <= shipped_hosts().keys()
        assert {f"{name}_{machine}" for name in policies} <= shipped_hosts().keys()
    assert "ubuntu-16.04-x86_64" in shipped_hosts()
    assert {f"jetpack-{number}-aarch64" for number in (4, 5, 6, 7)} <= shipped_hosts().keys()


@pytest.mark.parametrize(
    ("name", "libc_version", "python", "newest_cxx", "missing_cxx"),
    [
        # The versions of glibc and GCC that these were released with; for GCC's the table
        # "ABI Policy and Guidelines" of libstdc++'s manual.
        ("debian-11-x86_64", (2, 31), (3, 9), "GLIBCXX_3.4.28", "GLIBCXX_3.4.29"),
        ("debian-12-aarch64", (2, 36), (3, 11), "GLIBCXX_3.4.30", "GLIBCXX_3.4.31"),
        ("debian-13-aarch64", (2, 41), (3, 13), "GLIBCXX_3.4.33", "GLIBCXX_3.4.34"),
        ("ubuntu-16.04-x86_64", (2, 23), (3, 5), "GLIBCXX_3.4.21", "GLIBCXX_3.4.22"),
        ("ubuntu-18.04-x86_64", (2, 27), (3, 6), "GLIBCXX_3.4.25", "GLIBCXX_3.4.26"),
        ("ubuntu-20.04-aarch64", (2, 31), (3, 8), "GLIBCXX_3.4.28", "GLIBCXX_3.4.29"),
        ("ubuntu-22.04-x86_64", (2, 35), (3, 10), "GLIBCXX_3.4.30", "GLIBCXX_3.4.31"),
        ("ubuntu-24.04-aarch64", (2, 39), (3, 12), "GLIBCXX_3.4.33", "GLIBCXX_3.4.34"),
        ("jetpack-6-aarch64", (2, 35), (3, 10), "GLIBCXX_3.4.30", "GLIBCXX_3.4.31"),
    ],
)
def test_distributions_have_the_versions_that_they_were_released_with(
    name: str,
    libc_version: tuple[int, int],
    python: tuple[int, int],
    newest_cxx: str,
    missing_cxx: str,
) -> None:
    host = load_shipped_host(name)
    assert host.libc_version == libc_version
    assert host.python is not None
    assert host.python.version == python
    versions = library(host, "libstdc++.so.6").versions
    assert newest_cxx in versions
    assert missing_cxx not in versions
    assert host.is_complete == (not name.startswith("jetpack"))  # of which the base is described
    assert "libz.so.1" in {each.soname for each in host.libraries} | host.other_libraries


def test_a_symbol_is_found_where_its_library_got_it() -> None:
    """``pthread_create`` went into libc with glibc 2.34; ``_dl_find_object`` came with 2.35."""
    old, new = load_shipped_host("debian-11-x86_64"), load_shipped_host("ubuntu-22.04-x86_64")
    assert answer(old, "libc.so.6", "pthread_create", "GLIBC_2.2.5") is Definition.ABSENT
    assert answer(old, "libpthread.so.0", "pthread_create", "GLIBC_2.2.5") is Definition.PRESENT
    for version in ("GLIBC_2.2.5", "GLIBC_2.34"):
        assert answer(new, "libc.so.6", "pthread_create", version) is Definition.PRESENT
    assert answer(new, "libc.so.6", "_dl_find_object", "GLIBC_2.35") is Definition.PRESENT
    assert answer(old, "libc.so.6", "_dl_find_object", "GLIBC_2.35") is Definition.ABSENT


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_policy_promises_its_versions_and_none_that_is_newer(machine: str) -> None:
    host = load_shipped_host(f"manylinux2014_{machine}")
    assert host.libc_version == (2, 17)
    assert not host.is_complete
    assert host.python is None
    assert answer(host, "libc.so.6", "secure_getenv", "GLIBC_2.17") is Definition.PRESENT
    assert answer(host, "libm.so.6", "exp", "GLIBC_2.29") is Definition.ABSENT
    cxx = library(host, "libstdc++.so.6").versions
    assert "GLIBCXX_3.4.19" in cxx
    assert "GLIBCXX_3.4.20" not in cxx
    assert library(host, "libX11.so.6").symbols is None


def test_an_unknown_name_is_answered_with_those_that_are_near() -> None:
    with pytest.raises(HostError, match="'debian-12'") as raised:
        load_shipped_host("debian-12")
    assert "debian-12-x86_64" in raised.value.hint


@pytest.mark.parametrize(("major", "release"), [(4, 32), (5, 35), (6, 36), (7, 38)])
def test_a_jetpack_is_a_jetson_with_its_driver(major: int, release: int) -> None:
    host = load_shipped_host(f"jetpack-{major}-aarch64")
    assert host.tegra_release is not None
    assert host.tegra_release[0] == release
    jetpack = shipped_table().jetpack_of(host.tegra_release, None)
    assert jetpack is not None
    assert jetpack.version.startswith(f"{major}.")
    assert "libcuda.so.1" in host.other_libraries
    assert load_shipped_host("ubuntu-22.04-aarch64").tegra_release is None


@pytest.mark.parametrize("machine", ["aarch64", "x86_64"])
def test_the_unwinder_of_aarch64_has_an_old_version(machine: str) -> None:
    """What TensorFlow's and JAX's wheels for aarch64 ask for."""
    for name in (f"manylinux_2_17_{machine}", f"debian-12-{machine}"):
        host = load_shipped_host(name)
        (libgcc,) = (each for each in host.libraries if each.soname == "libgcc_s.so.1")
        assert ("GLIBC_2.0" in libgcc.versions) == (machine == "aarch64")


@pytest.mark.parametrize("release", [12, 13])
def test_a_raspberry_pi_5_has_large_pages(release: int) -> None:
    host = load_shipped_host(f"raspberry-pi-5-os-{release}-aarch64")
    other = load_shipped_host(f"raspberry-pi-os-{release}-aarch64")
    assert (host.page_bytes, other.page_bytes) == (16384, None)
    assert (host.libc_version, host.python) == (other.libc_version, other.python)
    with pytest.raises(HostError) as raised:
        load_shipped_host("raspberry-pi-5")
    assert host.name in raised.value.hint
