"""Describes what the manylinux policies promise, as auditwheel has them.

A policy (PEP 600) promises some libraries and versions of their symbols: on which file they lie,
what else there is, and which Python, it leaves open.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib import metadata, resources
from typing import Any

from potluck.portability.hosts.host import GLIBC_LIBRARIES, Host, HostLibrary
from potluck.portability.hosts.symbol_set import SymbolsOfVersions

_OLD_UNWINDER = "GLIBC_2.0"
"""A version that libgcc_s.so.1 defines too, on machines whose first glibc was newer, by the rules
of GCC's libgcc/config/libgcc-glibc.ver; x86_64 has rules of its own. All described aarch64 systems
have it, and TensorFlow's and JAX's wheels require it there.
"""

_LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}

_LIBRARIES = {
    "CXXABI": ("libstdc++.so.6",),
    "GLIBCXX": ("libstdc++.so.6",),
    "GCC": ("libgcc_s.so.1",),
    "LIBATOMIC": ("libatomic.so.1",),
    "ZLIB": ("libz.so.1",),
    "GLIBC": (*GLIBC_LIBRARIES, *_LOADERS.values()),
}
"""Which libraries define the versions of a family. A policy says of glibc as a whole which versions
it has; a library of it may have none at some of them, and nobody then asks for that."""


def describe_policies() -> Iterator[Host]:
    """Yield a host for each glibc policy of auditwheel and each machine that Potluck supports."""
    source = f"auditwheel {metadata.version('auditwheel')}"
    text = (resources.files("auditwheel") / "policy/manylinux-policy.json").read_text("utf-8")
    for policy in json.loads(text):
        if match := re.fullmatch(r"manylinux_(\d+)_(\d+)", policy["name"]):
            for machine in _LOADERS.keys() & policy["symbol_versions"].keys():
                yield _host(policy, (int(match[1]), int(match[2])), machine, source)


def _host(
    policy: Mapping[str, Any], libc_version: tuple[int, int], machine: str, source: str
) -> Host:
    versions: dict[str, set[str]] = {}
    for family, numbers in policy["symbol_versions"][machine].items():
        for library in _LIBRARIES[family]:
            versions.setdefault(library, set()).update(f"{family}_{each}" for each in numbers)
    if _OLD_UNWINDER in versions["libc.so.6"]:
        versions["libgcc_s.so.1"].add(_OLD_UNWINDER)
    sonames = dict.fromkeys((*policy["lib_whitelist"], _LOADERS[machine]))
    return Host(
        name=f"{policy['name']}_{machine}",
        origin=f"the policy {policy['name']} for {machine}, as {source} has it",
        machine=machine,
        libc="glibc",
        libc_version=libc_version,
        is_complete=False,
        libraries=tuple(
            _library(soname, frozenset(versions.get(soname, ()))) for soname in sonames
        ),
        other_libraries=frozenset(),
    )


def _library(soname: str, versions: frozenset[str]) -> HostLibrary:
    return HostLibrary(
        soname=soname,
        path="",
        versions=versions,
        needed=(),
        symbols=SymbolsOfVersions(versions=versions) if versions else None,
    )
