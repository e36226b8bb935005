"""The hosts that come with Potluck are well formed, and say what is known of these systems."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

import potluck
from potluck.errors import HostError
from potluck.portability.host import Definition, Host, HostLibrary
from potluck.portability.host_document import MAX_DOCUMENT_BYTES
from potluck.portability.shipped_hosts import load_shipped_host, shipped_hosts

PACKAGE = Path(potluck.__file__).parent
SCHEMA = jsonschema.Draft202012Validator(
    json.loads((PACKAGE / "cli/schemas/host.json").read_text())
)
FILES = sorted((PACKAGE / "portability/hosts").glob("*.json"))


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
    SCHEMA.validate(document)
    assert len(json.dumps(document, separators=(",", ":"))) <= MAX_DOCUMENT_BYTES
    assert document["name"] == file.stem
    assert file.stem.endswith(document["machine"])


@pytest.mark.parametrize("name", shipped_hosts())
def test_every_name_loads_and_says_where_it_is_from(name: str) -> None:
    host = load_shipped_host(name)
    assert host.name == name
    assert host.origin
    assert host.libc == "glibc"
    assert library(host, "libc.so.6").versions


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
