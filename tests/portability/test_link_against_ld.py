"""What the linker is said to do, and what it does: small libraries, opened by this machine's own.

Each case is a folder of libraries that gcc builds; every file is opened in a process of its own, in
which nothing else was opened before.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.portability.checked_wheel import check_wheel

from potluck.portability.hosts.host import Host
from potluck.portability.hosts.installed import describe_host

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")

_OPEN = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"


@dataclass(frozen=True, kw_only=True)
class Library:
    """``path`` in the folder, C ``source`` and ``flags``; ``links`` are paths of libraries.

    A later library of the same path takes the place of an earlier one, which others were linked
    with.
    """

    path: str
    source: str = ""
    flags: Sequence[str] = ()
    links: Sequence[str] = ()
    script: str = ""
    search: str = ""
    is_rpath: bool = False
    soname: str = ""


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    libraries: Sequence[Library]
    opened: dict[str, bool] = field(default_factory=dict)
    """What the real linker does, so that no case is about nothing."""


def user(path: str, *links: str, calls: str = "f", **how: object) -> Library:
    source = "".join(f"void {name}(void);" for name in calls)
    source += f"void own(void) {{ {''.join(f'{name}();' for name in calls)} }}"
    return Library(path=path, source=source, links=links, **how)  # type: ignore[arg-type]


def giver(path: str, gives: str = "f", **how: object) -> Library:
    source = "".join(f"void {name}(void) {{}}" for name in gives)
    return Library(path=path, source=source, **how)  # type: ignore[arg-type]


_OLD_AND_NEW = """
void old_f(void) {} void new_f(void) {}
__asm__(".symver old_f,f@V1"); __asm__(".symver new_f,f@@V2");
"""
_HIDDEN = 'void old_f(void) {} void g(void) {} __asm__(".symver old_f,f@VERSION");'
_V1 = "V1 { global: f; local: *; };"
_V1_V2 = "V1 { global: f; }; V2 { global: f; g; local: *; } V1;"

CASES = [
    Case(
        name="all is there",
        libraries=[giver("libx.so"), user("a.so", "libx.so", search="$ORIGIN")],
        opened={"a.so": True, "libx.so": True},
    ),
    Case(
        name="no search path",
        libraries=[giver("libx.so"), user("a.so", "libx.so")],
        opened={"a.so": False},
    ),
    Case(
        name="an undefined function",
        libraries=[user("a.so", calls="f")],
        opened={"a.so": False},
    ),
    Case(
        name="an undefined variable",
        libraries=[Library(path="a.so", source="extern int v; int *own(void) { return &v; }")],
        opened={"a.so": False},
    ),
    Case(
        name="a weak undefined function",
        libraries=[
            Library(
                path="a.so",
                source="void f(void) __attribute__((weak)); void own(void) { if (f) f(); }",
            )
        ],
        opened={"a.so": True},
    ),
    Case(
        name="functions of libm and libc without a need of them",
        libraries=[
            Library(
                path="a.so",
                source="double exp(double); void *malloc(unsigned long);"
                "double own(double x) { malloc(1); return exp(x); }",
                flags=["-nostdlib", "-fno-builtin"],
            )
        ],
        opened={"a.so": True},
    ),
    Case(
        name="Python's functions",
        libraries=[
            Library(path="a.so", source="void PyErr_Clear(void); void own(void) { PyErr_Clear(); }")
        ],
        opened={"a.so": True},
    ),
    *(
        Case(
            name=f"a path handed down, {'RPATH' if is_rpath else 'RUNPATH'}",
            libraries=[
                giver("lib/liby.so", "g"),
                user("lib/libx.so", "lib/liby.so", calls="g"),
                user(
                    "a.so",
                    "lib/libx.so",
                    calls="",
                    search="$ORIGIN/lib",
                    is_rpath=is_rpath,
                    flags=["-Wl,--no-as-needed"],
                ),
            ],
            opened={"a.so": is_rpath, "lib/libx.so": False},
        )
        for is_rpath in (True, False)
    ),
    Case(
        name="a RUNPATH shuts out the RPATH of others",
        libraries=[
            giver("lib/liby.so", "g"),
            user("lib/libx.so", "lib/liby.so", calls="g", search="$ORIGIN/elsewhere"),
            user(
                "a.so",
                "lib/libx.so",
                calls="",
                search="$ORIGIN/lib",
                is_rpath=True,
                flags=["-Wl,--no-as-needed"],
            ),
        ],
        opened={"a.so": False},
    ),
    Case(
        name="known by its soname",
        libraries=[
            giver("libx.so", soname="libx.so.1"),
            user("libz.so", "libx.so", calls="f"),
            giver("libx.so"),
            user("a.so", "libx.so", "libz.so", search="$ORIGIN", flags=["-Wl,--no-as-needed"]),
            giver("libx.so", soname="libx.so.1"),
        ],
        opened={"a.so": True, "libz.so": False},
    ),
    Case(
        name="leaning on a neighbour",
        libraries=[
            user("libx.so", calls="f"),
            giver("liby.so"),
            user(
                "a.so",
                "libx.so",
                "liby.so",
                calls="",
                search="$ORIGIN",
                flags=["-Wl,--no-as-needed"],
            ),
        ],
        opened={"a.so": True, "libx.so": False},
    ),
    Case(
        name="the version is there",
        libraries=[giver("libx.so", script=_V1), user("a.so", "libx.so", search="$ORIGIN")],
        opened={"a.so": True},
    ),
    Case(
        name="the version is gone",
        libraries=[
            giver("libx.so", script=_V1),
            user("a.so", "libx.so", search="$ORIGIN"),
            giver("libx.so", script="V9 { global: f; local: *; };"),
        ],
        opened={"a.so": False},
    ),
    Case(
        name="the version is there without the symbol",
        libraries=[
            giver("libx.so", script=_V1),
            user("a.so", "libx.so", search="$ORIGIN"),
            giver("libx.so", "g", script="V1 { global: g; local: *; };"),
        ],
        opened={"a.so": False},
    ),
    Case(
        name="the symbol has another version by now",
        libraries=[
            giver("libx.so", script=_V1),
            user("a.so", "libx.so", search="$ORIGIN"),
            giver("libx.so", "fg", script="V1 { global: g; }; V2 { global: f; local: *; } V1;"),
        ],
        opened={"a.so": False},
    ),
    Case(
        name="the old version is kept for the old",
        libraries=[
            giver("libx.so", script=_V1),
            user("a.so", "libx.so", search="$ORIGIN"),
            Library(path="libx.so", source=_OLD_AND_NEW + "void g(void) {}", script=_V1_V2),
        ],
        opened={"a.so": True},
    ),
    Case(
        name="another library defines the versioned symbol without versions",
        libraries=[
            giver("libx.so", script=_V1),
            giver("liby.so"),
            user("a.so", "liby.so", "libx.so", search="$ORIGIN", flags=["-Wl,--no-as-needed"]),
        ],
        opened={"a.so": True},
    ),
    *(
        Case(
            name=f"a reference without a version, to a hidden {version}",
            libraries=[
                giver("libx.so"),
                user("a.so", "libx.so", search="$ORIGIN"),
                Library(
                    path="libx.so",
                    source=_HIDDEN.replace("VERSION", version),
                    script="V1 { global: f; g; }; V2 { global: f; local: *; } V1;",
                ),
            ],
            opened={"a.so": version == "V1"},
        )
        for version in ("V1", "V2")
    ),
    Case(
        name="a reference without a version, to the default",
        libraries=[
            giver("libx.so"),
            user("a.so", "libx.so", search="$ORIGIN"),
            Library(path="libx.so", source=_OLD_AND_NEW + "void g(void) {}", script=_V1_V2),
        ],
        opened={"a.so": True},
    ),
]


@pytest.fixture(scope="module")
def host() -> Host:
    return describe_host()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_linker_does_what_is_said(case: Case, host: Host, tmp_path: Path) -> None:
    for library in case.libraries:
        build(library, tmp_path)
    report = check_wheel(tmp_path, [host]).hosts[0]
    predicted = {each.path: each.opens_alone for each in report.files}
    done = {path: opens(tmp_path / path) for path in predicted}
    assert predicted == done
    assert done.items() >= case.opened.items()


def build(library: Library, folder: Path) -> None:
    path = folder / library.path
    path.parent.mkdir(exist_ok=True)
    options = ["-Wl,--disable-new-dtags" if library.is_rpath else "-Wl,--enable-new-dtags"]
    if library.search:
        options.append(f"-Wl,-rpath,{library.search}")
    # Without a soname, what is linked would be needed by the path that gcc is given.
    options.append(f"-Wl,-soname,{library.soname or path.name}")
    if library.script:
        script = folder / "script"
        script.write_text(library.script)
        options.append(f"-Wl,--version-script={script}")
    linked = [str(folder / each) for each in library.links]
    flags = ["-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-Wl,--allow-shlib-undefined"]
    command = ["gcc", *library.flags, *options, "-o", str(path), *flags, *linked]
    subprocess.run(command, input=library.source, text=True, check=True, capture_output=True)


def opens(path: Path) -> bool:
    command = [sys.executable, "-I", "-S", "-c", _OPEN, str(path)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert completed.returncode == 0 or "OSError" in completed.stderr, completed.stderr
    return completed.returncode == 0
