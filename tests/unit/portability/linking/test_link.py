"""The dynamic linker's decisions, one at a time; tests/portability asks the real one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from support.portability.linking import a_host, a_library, an_elf, undefined

from potluck.portability.elf.file import ElfFile, UndefinedSymbol
from potluck.portability.hosts.host import Host
from potluck.portability.linking.link import Link, Linker
from potluck.portability.linking.object_tree import ObjectTree

HOST = a_host()


def opened(
    objects: Mapping[str, ElfFile],
    path: str,
    host: Host = HOST,
    links: Mapping[str, str] | None = None,
) -> Link:
    tree = ObjectTree(objects, links)
    root = tree.at(path)
    assert root is not None
    (link,) = Linker(host).link(tree, [root])
    return link


def missing(link: Link) -> list[str]:
    return [each.library for each in link.missing_libraries]


def versions(link: Link) -> list[str]:
    return [each.version for each in link.missing_versions]


def symbols(link: Link) -> list[str]:
    return [each.symbol.name for each in link.missing_symbols]


# What is needed


def test_a_library_of_the_host_is_found() -> None:
    link = opened({"a.so": an_elf(needed=["libc.so.6"], wants=["malloc@GLIBC_2.2.5"])}, "a.so")
    assert link.is_opened
    assert link.mapped == ("a.so",)


def test_a_library_that_is_nowhere() -> None:
    link = opened({"a.so": an_elf(needed=["libx.so.1", "libc.so.6"])}, "a.so")
    assert missing(link) == ["libx.so.1"]
    assert link.missing_libraries[0].needed_by == "a.so"
    assert link.missing_libraries[0].path_in_tree == ""
    assert not link.is_opened


def test_a_library_of_which_the_name_alone_is_known() -> None:
    host = a_host(others=["libx.so.1"])
    link = opened({"a.so": an_elf(needed=["libx.so.1"], wants=["x_init"])}, "a.so", host)
    assert link.is_opened
    assert link.presumed == {"libx.so.1"}


def test_a_library_by_an_absolute_path() -> None:
    host = a_host(a_library("libx.so.1", path="/opt/x/libx.so.1"))
    elf = an_elf(needed=["/opt/x/libx.so.1", "/opt/y/libx.so.1"])
    assert missing(opened({"a.so": elf}, "a.so", host)) == ["/opt/y/libx.so.1"]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("loader", ["ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"])
def test_the_linker_itself_is_always_there(machine: str, loader: str) -> None:
    elf = an_elf(
        needed=[loader],
        wants=[undefined("__tls_get_addr@GLIBC_2.3", loader)],
        machine=machine,
    )
    assert opened({"a.so": elf}, "a.so", a_host(machine=machine)).is_opened


def test_the_linker_that_is_described_must_have_the_version() -> None:
    loader = a_library("ld-linux-aarch64.so.1", versions=("GLIBC_2.17",))
    elf = an_elf(
        needed=["ld-linux-aarch64.so.1"],
        wants=[undefined("_dl_find_object@GLIBC_2.35", "ld-linux-aarch64.so.1")],
    )
    assert versions(opened({"a.so": elf}, "a.so", a_host(loader))) == ["GLIBC_2.35"]


# Search paths


@pytest.mark.parametrize(
    "entry", ["$ORIGIN/../lib", "${ORIGIN}/../lib", "$ORIGIN/../lib/", "$ORIGIN//../lib/."]
)
def test_a_search_path_from_where_the_file_is(entry: str) -> None:
    objects = {
        "p/sub/a.so": an_elf(needed=["libx.so"], runpath=[entry]),
        "p/lib/libx.so": an_elf(),
    }
    assert opened(objects, "p/sub/a.so").mapped == ("p/sub/a.so", "p/lib/libx.so")


@pytest.mark.parametrize("entry", ["lib", ".", "$LIB", "/usr/lib", "$ORIGINAL/lib"])
def test_other_search_paths_lead_nowhere_in_the_tree(entry: str) -> None:
    objects = {"a.so": an_elf(needed=["libx.so"], runpath=[entry]), "lib/libx.so": an_elf()}
    assert missing(opened(objects, "a.so")) == ["libx.so"]


def test_a_search_path_that_leaves_the_packages() -> None:
    objects = {
        "p/a.so": an_elf(needed=["libx.so"], runpath=["$ORIGIN/../../../../lib"]),
        "../../../lib/libx.so": an_elf(),
    }
    assert opened(objects, "p/a.so").is_opened


def test_the_first_folder_wins() -> None:
    objects = {
        "a.so": an_elf(needed=["libx.so"], runpath=["$ORIGIN/one", "$ORIGIN/two"]),
        "two/libx.so": an_elf(),
        "one/libx.so": an_elf(),
    }
    assert opened(objects, "a.so").mapped == ("a.so", "one/libx.so")


def test_the_tree_comes_before_the_host() -> None:
    host = a_host(a_library("libx.so.1"))
    objects = {
        "a.so": an_elf(needed=["libx.so.1"], runpath=["$ORIGIN"], wants=["new"]),
        "libx.so.1": an_elf(gives=["new"], soname="libx.so.1"),
    }
    assert opened(objects, "a.so", host).is_opened


def test_what_the_process_has_comes_before_the_tree() -> None:
    objects = {
        "a.so": an_elf(needed=["libm.so.6"], runpath=["$ORIGIN"], wants=["own"]),
        "libm.so.6": an_elf(gives=["own"], soname="libm.so.6"),
    }
    link = opened(objects, "a.so")
    assert link.mapped == ("a.so",)
    assert symbols(link) == ["own"]


def test_an_rpath_is_handed_down_and_a_runpath_is_not() -> None:
    folders = ["$ORIGIN/../lib"]
    objects = {
        "p/a.so": an_elf(needed=["lib1.so"], rpath=folders),
        "lib/lib1.so": an_elf(needed=["lib2.so"]),
        "lib/lib2.so": an_elf(),
    }
    assert opened(objects, "p/a.so").is_opened
    objects["p/a.so"] = an_elf(needed=["lib1.so"], runpath=folders)
    link = opened(objects, "p/a.so")
    assert missing(link) == ["lib2.so"]
    assert link.missing_libraries[0].needed_by == "lib/lib1.so"


def test_who_has_a_runpath_gets_no_rpath_of_others() -> None:
    objects = {
        "a.so": an_elf(needed=["lib1.so"], rpath=["$ORIGIN/lib"]),
        "lib/lib1.so": an_elf(needed=["lib2.so"], runpath=["$ORIGIN/elsewhere"]),
        "lib/lib2.so": an_elf(),
    }
    assert missing(opened(objects, "a.so")) == ["lib2.so"]


def test_an_rpath_passes_through_libraries_of_the_host() -> None:
    host = a_host(a_library("libh.so", needed=["lib2.so"]))
    objects = {
        "a.so": an_elf(needed=["libh.so"], rpath=["$ORIGIN/lib"]),
        "lib/lib2.so": an_elf(),
    }
    assert opened(objects, "a.so", host).mapped == ("a.so", "lib/lib2.so")


def test_a_file_for_another_machine_is_passed_over() -> None:
    objects = {
        "a.so": an_elf(needed=["libx.so"], runpath=["$ORIGIN/arm", "$ORIGIN/x86"]),
        "arm/libx.so": an_elf(machine="aarch64"),
        "x86/libx.so": an_elf(),
    }
    assert opened(objects, "a.so").mapped == ("a.so", "x86/libx.so")


def test_a_link_in_the_tree_leads_to_its_file() -> None:
    objects = {
        "a.so": an_elf(needed=["libx.so.1", "libx.so"], runpath=["$ORIGIN"]),
        "libx.so.1.2": an_elf(soname="libx.so.1"),
    }
    links = {"libx.so.1": "libx.so.1.2", "libx.so": "libx.so.1.2"}
    assert opened(objects, "a.so", links=links).mapped == ("a.so", "libx.so.1.2")


# Names of what is loaded


def test_a_library_is_known_by_its_soname_once_it_is_loaded() -> None:
    objects = {
        "a.so": an_elf(needed=["libx.so", "liby.so"], runpath=["$ORIGIN"]),
        "libx.so": an_elf(soname="libx.so.1"),
        "liby.so": an_elf(needed=["libx.so.1"]),
    }
    assert opened(objects, "a.so").is_opened


def test_the_file_that_is_opened_is_known_by_its_soname() -> None:
    objects = {
        "p/a.so": an_elf(needed=["libx.so"], runpath=["$ORIGIN"], soname="liba.so.1", gives=["f"]),
        "p/libx.so": an_elf(needed=["liba.so.1"], wants=["f"]),
    }
    assert opened(objects, "p/a.so").is_opened


def test_breadth_comes_before_depth() -> None:
    objects = {
        "a.so": an_elf(needed=["lib1.so", "lib2.so"], runpath=["$ORIGIN"]),
        "lib1.so": an_elf(needed=["lib3.so"], runpath=["$ORIGIN"]),
        "lib2.so": an_elf(),
        "lib3.so": an_elf(needed=["a.so"]),
    }
    assert opened(objects, "a.so").mapped[:4] == ("a.so", "lib1.so", "lib2.so", "lib3.so")


def test_what_lies_elsewhere_in_the_tree_is_missing_and_known() -> None:
    objects = {
        "p/a.so": an_elf(needed=["libx.so.1"], wants=["f"]),
        "q/libx.so": an_elf(soname="libx.so.1", gives=["f"]),
    }
    link = opened(objects, "p/a.so")
    assert not link.is_opened
    assert link.missing_libraries[0].path_in_tree == "q/libx.so"
    assert symbols(link) == []


# Versions


def test_a_version_that_the_host_lacks() -> None:
    elf = an_elf(
        needed=["libc.so.6", "libm.so.6"],
        wants=["stat@GLIBC_2.33", "lstat@GLIBC_2.33", undefined("exp@GLIBC_2.29", "libm.so.6")],
    )
    link = opened({"a.so": elf}, "a.so")
    (found,) = link.missing_versions
    assert (found.library, found.version, found.needed_by) == ("libc.so.6", "GLIBC_2.33", "a.so")
    assert found.symbols == ("stat", "lstat")
    assert found.is_loaded
    assert found.path_in_tree == ""
    assert symbols(link) == []  # they are what the version was for


def test_versions_count_and_not_their_numbers() -> None:
    """2.14 is newer than 2.2.5, and a library may define 2.34 and not 2.33."""
    elf = an_elf(needed=["libc.so.6"], also_needs_versions=[("libc.so.6", "GLIBC_2.33")])
    assert versions(opened({"a.so": elf}, "a.so")) == ["GLIBC_2.33"]


def test_a_weak_version_may_be_missing() -> None:
    weak = [("libc.so.6", "GLIBC_2.99")]
    elf = an_elf(
        needed=["libc.so.6"],
        wants=[undefined("later@GLIBC_2.99", is_weak=True)],
        weak_versions=weak,
    )
    assert opened({"a.so": elf}, "a.so").is_opened
    strong = an_elf(needed=["libc.so.6"], wants=[undefined("later@GLIBC_2.99")], weak_versions=weak)
    assert symbols(opened({"a.so": strong}, "a.so")) == ["later"]


def test_a_library_without_versions_meets_all() -> None:
    host = a_host(a_library("libx.so.1", "f"))
    elf = an_elf(needed=["libx.so.1"], wants=[undefined("f@X_1", "libx.so.1")])
    assert opened({"a.so": elf}, "a.so", host).is_opened


def test_versions_are_wanted_of_what_is_loaded() -> None:
    """glibc ends the process where a version is of a library that nobody needs."""
    elf = an_elf(needed=["libc.so.6"], also_needs_versions=[("libx.so.1", "X_1")])
    host = a_host(a_library("libx.so.1", versions=("X_1",)))
    (found,) = opened({"a.so": elf}, "a.so", host).missing_versions
    assert not found.is_loaded
    loaded_before = an_elf(also_needs_versions=[("libm.so.6", "GLIBC_2.29")])
    assert opened({"a.so": loaded_before}, "a.so").is_opened


def test_a_version_of_a_library_in_the_tree() -> None:
    objects = {
        "a.so": an_elf(
            needed=["libx.so"],
            runpath=["$ORIGIN"],
            wants=[undefined("f@X_1", "libx.so"), undefined("g@X_2", "libx.so")],
        ),
        "libx.so": an_elf(versions=["X_1"], gives=["f@@X_1"], soname="libx.so"),
    }
    link = opened(objects, "a.so")
    assert versions(link) == ["X_2"]
    assert link.missing_versions[0].path_in_tree == "libx.so"


def test_what_is_brought_along_is_checked_too() -> None:
    objects = {
        "a.so": an_elf(needed=["libx.so"], runpath=["$ORIGIN"]),
        "libx.so": an_elf(needed=["libc.so.6"], wants=["stat@GLIBC_2.33"]),
    }
    assert opened(objects, "a.so").missing_versions[0].needed_by == "libx.so"


# Symbols


@pytest.mark.parametrize(
    ("wanted", "is_bound"),
    [
        ("malloc@GLIBC_2.2.5", True),
        ("malloc", True),
        ("memcpy@GLIBC_2.2.5", True),  # kept for old programs
        ("memcpy", True),
        ("memcpy@GLIBC_2.34", False),
        ("old", True),  # hidden, but of the first version
        ("gone", False),  # hidden, and later than the first
        ("gone@GLIBC_2.14", True),
        ("nothing@GLIBC_2.2.5", False),
        ("nothing", False),
    ],
)
def test_a_symbol_of_the_host(wanted: str, is_bound: bool) -> None:
    link = opened({"a.so": an_elf(needed=["libc.so.6"], wants=[wanted])}, "a.so")
    assert symbols(link) == ([] if is_bound else [wanted.partition("@")[0]])


@pytest.mark.parametrize(
    ("gives", "versions_", "wanted", "is_bound"),
    [
        ("f", [], "f", True),
        ("f", [], "f@V1", True),  # without versions it satisfies everybody
        ("f@@V1", ["V1"], "f", True),
        ("f@@V1", ["V1"], "f@V1", True),
        ("f@@V2", ["V1", "V2"], "f@V1", False),
        ("f@@V2", ["V1", "V2"], "f", True),
        ("f@V1", ["V1", "V2"], "f", True),
        ("f@V2", ["V1", "V2"], "f", False),
        ("f@V2", ["V1", "V2"], "f@V2", True),
        ("f", ["V1"], "f@V1", True),  # of no version among others that have one
        ("g@@V1", ["V1"], "f", False),
    ],
)
def test_a_symbol_of_the_tree(
    gives: str, versions_: list[str], wanted: str, is_bound: bool
) -> None:
    objects = {
        "a.so": an_elf(needed=["libx.so"], runpath=["$ORIGIN"], wants=[undefined(wanted, "-")]),
        "libx.so": an_elf(versions=versions_, gives=[gives]),
    }
    objects["a.so"] = _without_version_needs(objects["a.so"])
    link = opened(objects, "a.so")
    assert symbols(link) == ([] if is_bound else ["f"])
    host_library = a_library("libx.so", gives, versions=versions_)
    on_host = opened({"a.so": objects["a.so"]}, "a.so", a_host(host_library))
    assert symbols(on_host) == symbols(link)


def _without_version_needs(elf: ElfFile) -> ElfFile:
    """To see what binds a symbol when no version is missing."""
    from dataclasses import replace

    return replace(elf, version_needs=())


def test_a_weak_symbol_may_be_missing() -> None:
    elf = an_elf(wants=[UndefinedSymbol(name="_ITM_deregisterTMCloneTable", is_weak=True)])
    assert opened({"a.so": elf}, "a.so").is_opened


def test_python_gives_its_own_symbols() -> None:
    wants = ["PyModule_Create2", "_Py_Dealloc", "_PyObject_New", "Pylon_start_", "xPy"]
    link = opened({"a.so": an_elf(wants=wants)}, "a.so")
    assert symbols(link) == ["xPy"]


def test_a_program_of_its_own_gets_nothing_of_python() -> None:
    elf = an_elf(
        wants=["PyModule_Create2", "exp"],
        needed=["libc.so.6"],
        interpreter="/lib64/ld-linux-x86-64.so.2",
    )
    assert symbols(opened({"bin/tool": elf}, "bin/tool")) == ["PyModule_Create2", "exp"]


def test_what_the_process_loaded_is_in_scope() -> None:
    assert opened({"a.so": an_elf(wants=["exp"])}, "a.so").is_opened
    for needed in ([], ["libc.so.6"]):
        program = an_elf(wants=["exp"], needed=needed, interpreter="/lib64/ld-linux-x86-64.so.2")
        assert symbols(opened({"a": program}, "a")) == ["exp"]


def test_all_that_is_brought_along_is_in_scope_of_all() -> None:
    """``libx`` leans on ``liby``, which it does not need by name."""
    objects = {
        "a.so": an_elf(needed=["libx.so", "liby.so"], runpath=["$ORIGIN"]),
        "libx.so": an_elf(wants=["g", "h"]),
        "liby.so": an_elf(gives=["g"]),
        "libz.so": an_elf(gives=["h"]),
    }
    link = opened(objects, "a.so")
    (found,) = link.missing_symbols
    assert (found.symbol.name, found.needed_by, found.path_in_tree) == ("h", "libx.so", "libz.so")


def test_a_missing_library_excuses_what_it_may_define() -> None:
    elf = an_elf(needed=["libx.so", "libc.so.6"], wants=["x_init", "nothing@GLIBC_2.2.5"])
    link = opened({"a.so": elf}, "a.so")
    assert missing(link) == ["libx.so"]
    assert symbols(link) == ["nothing"]


def test_libraries_whose_symbols_were_not_read() -> None:
    host = a_host(a_library("libx.so.1", versions=("X_1",), is_described=False))
    wants = [undefined("f@X_1", "libx.so.1"), undefined("g")]
    assert opened({"a.so": an_elf(needed=["libx.so.1"], wants=wants)}, "a.so", host).is_opened


# musl


def test_musl_takes_names_of_glibc_for_itself_and_looks_at_no_versions() -> None:
    musl = a_library("libc.musl-x86_64.so.1", "malloc")
    host = a_host(musl, libc="musl", libc_version=(1, 2))
    elf = an_elf(needed=["libm.so.6", "libpthread.so.0"], wants=["malloc@GLIBC_2.2.5"])
    assert opened({"a.so": elf}, "a.so", host).is_opened


def test_one_linker_serves_many_trees() -> None:
    linker = Linker(a_host())
    good = ObjectTree({"a.so": an_elf(wants=["malloc"])})
    bad = ObjectTree({"a.so": an_elf(wants=["nothing"])})
    for _ in range(2):
        assert [link.is_opened for tree in (good, bad) for link in linker.link(tree, tree)] == [
            True,
            False,
        ]
