"""Linking with its numbers and memories against the plainest possible reading of the rules."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.portability.linking import LIBC, a_host, an_elf

from potluck.portability.elf.defined_symbols import DefinedSymbol
from potluck.portability.elf.file import ElfFile, UndefinedSymbol
from potluck.portability.hosts.host import Definition
from potluck.portability.linking.link import Linker
from potluck.portability.linking.object_tree import ObjectTree

PATHS = ["a.so", "lib/b.so", "lib/c.so", "d.so"]
NAMES = ["a.so", "b.so", "c.so", "d.so", "libm.so.6", "libc.so.6", "libnowhere.so"]
VERSIONS = ["V1", "V2"]
HOST = a_host()


@st.composite
def files(draw: st.DrawFn) -> ElfFile:
    versions = draw(st.lists(st.sampled_from(VERSIONS), unique=True, max_size=2))
    suffixes = ["", *(f"@@{each}" for each in versions), *(f"@{each}" for each in versions)]
    gives = draw(
        st.lists(
            st.tuples(st.sampled_from("fgh"), st.sampled_from(suffixes)),
            unique_by=lambda each: each[0],
            max_size=3,
        )
    )
    wants = draw(
        st.lists(
            st.sampled_from(["f", "g", "h", "f@V1", "g@V2", "malloc", "exp", "gone", "PyList_New"]),
            unique=True,
            max_size=4,
        )
    )
    is_rpath = draw(st.booleans())
    search = draw(st.sampled_from([[], ["$ORIGIN"], ["$ORIGIN/lib"], ["$ORIGIN/.."]]))
    return an_elf(
        needed=draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3)),
        # Versions as such are the matter of other tests: here they only choose definitions.
        wants=[
            UndefinedSymbol(name=name, version=version, library="-" if version else "")
            for name, _, version in (each.partition("@") for each in wants)
        ],
        gives=["".join(each) for each in gives],
        versions=versions,
        weak_versions=[("-", each) for each in VERSIONS],
        soname=draw(st.sampled_from(["", *NAMES[:4]])),
        rpath=search if is_rpath else [],
        runpath=[] if is_rpath else search,
    )


class Plain:
    """One opening, by lists and loops."""

    def __init__(self, objects: Mapping[str, ElfFile], root: str) -> None:
        self.objects = objects
        self.loaded: list[tuple[str, int | None]] = [(root, None)]
        self.known = [("libc.so.6", ""), ("libm.so.6", ""), (objects[root].soname, root)]
        self.missing: list[str] = []

    def run(self) -> tuple[set[str], set[str], set[tuple[str, UndefinedSymbol]]]:
        position = 0
        while position < len(self.loaded):
            path, _ = self.loaded[position]
            for name in self.objects[path].needed:
                if name in (known for known, _ in self.known) or name in self.missing:
                    continue
                found = self.find(name, position)
                if found is None:
                    self.missing.append(name)
                    elsewhere = [
                        each
                        for each, elf in self.objects.items()
                        if name in (each.rpartition("/")[2], elf.soname)
                    ]
                    if not elsewhere:
                        continue
                    found = elsewhere[0]
                self.known += [(name, found), (self.objects[found].soname, found)]
                if found not in (each for each, _ in self.loaded):
                    self.loaded.append((found, position))
            position += 1
        paths = [path for path, _ in self.loaded]
        unbound = {
            (path, symbol)
            for path in paths
            for symbol in self.objects[path].undefined
            if not self.is_bound(symbol, paths)
            and (symbol.version or "libnowhere.so" not in self.missing)
        }
        return set(paths), set(self.missing), unbound

    def find(self, name: str, position: int | None) -> str | None:
        elf = self.objects[self.loaded[position][0]]  # type: ignore[index]
        folders = []
        if elf.search_path and not elf.is_rpath:
            folders = [self.folder(position)]
        else:
            while position is not None:
                if self.objects[self.loaded[position][0]].is_rpath:
                    folders.append(self.folder(position))
                position = self.loaded[position][1]
        for folder in folders:
            path = f"{folder}/{name}" if folder else name
            if path in self.objects:
                return path
        return None

    def folder(self, position: int | None) -> str:
        path = self.loaded[position][0]  # type: ignore[index]
        own = ["lib"] if path.startswith("lib/") else []
        (entry,) = self.objects[path].search_path
        parts = own + entry.split("/")[1:]
        while ".." in parts:
            place = parts.index("..")
            if place == 0:
                return "/".join(parts)
            del parts[place - 1 : place + 1]
        return "/".join(parts)

    def is_bound(self, symbol: UndefinedSymbol, paths: list[str]) -> bool:
        if symbol.name.startswith("Py") or (symbol.name == "exp" and not symbol.version):
            return True
        assert LIBC.symbols is not None
        if LIBC.symbols.defines(symbol.name, symbol.version) is Definition.PRESENT:
            return True
        return any(
            self.matches(symbol, each, self.objects[path])
            for path in paths
            for each in self.objects[path].defined
        )

    @staticmethod
    def matches(symbol: UndefinedSymbol, given: DefinedSymbol, elf: ElfFile) -> bool:
        if symbol.name != given.name:
            return False
        if not symbol.version:
            oldest = elf.version_definitions[:1]
            return not given.version or given.is_default or given.version in oldest
        return not elf.version_definitions or given.version in ("", symbol.version)


@pytest.mark.slow
@settings(max_examples=100)
@given(objects=st.fixed_dictionaries({path: files() for path in PATHS}))
def test_linking_follows_the_plain_rules(objects: dict[str, ElfFile]) -> None:
    tree = ObjectTree(objects)
    for link in Linker(HOST).link(tree, tree):
        paths, missing, unbound = Plain(objects, link.path).run()
        assert set(link.mapped) == paths
        assert {each.library for each in link.missing_libraries} == missing
        assert {(each.needed_by, each.symbol) for each in link.missing_symbols} == unbound
