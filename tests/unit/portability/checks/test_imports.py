"""Which file of a module Python loads."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.portability.linking import a_host

from potluck.portability.checks.host_check import file_of_module, is_for_other_python
from potluck.portability.hosts.host import HostPython

OWN = "p/a.cpython-315-x86_64-linux-gnu.so"
OWN_FREE = "p/a.cpython-315t-x86_64-linux-gnu.so"
OLDER = "p/a.cpython-314-x86_64-linux-gnu.so"
ON_ARM = "p/a.cpython-315-aarch64-linux-gnu.so"
STABLE = "p/a.abi3.so"
STABLE_FREE = "p/a.abi3t.so"
PLAIN = "p/a.so"
FOUND_BY_PACKAGE = "p/a.mpich.cpython-315-x86_64-linux-gnu.so"


@pytest.mark.parametrize(
    ("paths", "is_free_threaded", "loaded"),
    [
        ((OLDER, OWN, ON_ARM, OWN_FREE, STABLE, PLAIN), False, OWN),
        ((OLDER, OWN, ON_ARM, OWN_FREE, STABLE, PLAIN), True, OWN_FREE),
        ((PLAIN, STABLE, OLDER), False, STABLE),
        ((PLAIN, STABLE, OLDER), True, PLAIN),
        ((PLAIN, STABLE, STABLE_FREE), True, STABLE_FREE),
        ((FOUND_BY_PACKAGE, PLAIN), False, PLAIN),
        ((FOUND_BY_PACKAGE, OLDER), False, None),
        ((FOUND_BY_PACKAGE,), False, FOUND_BY_PACKAGE),
    ],
)
def test_which_file_is_loaded(
    paths: tuple[str, ...], is_free_threaded: bool, loaded: str | None
) -> None:
    python = HostPython(
        implementation="cpython", version=(3, 15), is_free_threaded=is_free_threaded
    )
    assert file_of_module(paths, replace(a_host(), python=python)) == loaded


@pytest.mark.parametrize(
    ("path", "is_other"),
    [
        (OWN, False),
        (OWN_FREE, True),
        (OLDER, True),
        (ON_ARM, True),
        (STABLE, False),
        (PLAIN, False),
        (FOUND_BY_PACKAGE, False),
        ("p/libx.so.1", False),
    ],
)
def test_which_files_are_for_another_python(path: str, is_other: bool) -> None:
    host = replace(a_host(), python=HostPython(implementation="cpython", version=(3, 15)))
    assert is_for_other_python(path, host) is is_other
    assert not is_for_other_python(path, replace(host, python=None))


@pytest.mark.parametrize("python", [None, HostPython(implementation="pypy", version=(3, 15))])
def test_nothing_is_known_of_another_python(python: HostPython | None) -> None:
    assert file_of_module((OWN, PLAIN), replace(a_host(), python=python)) is None
