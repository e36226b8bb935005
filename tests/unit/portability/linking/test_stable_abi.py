"""Whether files keep what the tag abi3 promises."""

from __future__ import annotations

import pytest
from packaging.tags import parse_tag
from support.portability.elf_bytes import Elf, Symbol

from potluck.portability.elf.file import ElfFile
from potluck.portability.elf.image import open_image
from potluck.portability.elf.reader import read_elf
from potluck.portability.finding import Severity
from potluck.portability.hosts.host import HostPython
from potluck.portability.linking.stable_abi import (
    new_symbol_findings,
    promised_python,
    stable_abi_findings,
    stable_abi_use,
)


def module(*names: str, weak: tuple[str, ...] = ()) -> ElfFile:
    symbols = [Symbol(name=name, is_called=True) for name in names]
    symbols += [Symbol(name=name, binding=2) for name in weak]
    return read_elf(
        open_image(Elf(symbols=[*symbols, Symbol(name="PyInit_m", is_defined=True)]).build())
    )


def tags(text: str) -> tuple[str, ...]:
    return tuple(map(str, parse_tag(text)))


def test_what_is_stable_since_when() -> None:
    use = stable_abi_use(module("PyList_New", "PyModule_GetState", "puts"))
    assert (use.least_python, use.outside) == ((3, 2), ())
    use = stable_abi_use(module("PyList_New", "PyType_FromModuleAndSpec", "PyModule_AddObjectRef"))
    assert (use.least_python, use.outside) == ((3, 10), ())
    assert use.newest == ("PyModule_AddObjectRef", "PyType_FromModuleAndSpec")


def test_what_is_not_stable() -> None:
    use = stable_abi_use(module("PyUnicode_AsUTF8AndSize", "_PyLong_Sign", "PyFrame_New"))
    assert use.outside == ("PyFrame_New", "_PyLong_Sign")


def test_data_is_a_part_of_it_too() -> None:
    use = stable_abi_use(module("PyExc_ValueError", "_Py_NoneStruct", "PyBaseObject_Type"))
    assert use.outside == ()


def test_symbols_of_others_and_weak_ones_do_not_count() -> None:
    elf = module("PyArray_API", "Pyro_start", "zPy_x", "_Z2Pyv", weak=("_PyFuture",))
    assert stable_abi_use(elf).outside == ()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("cp38-abi3-manylinux2014_x86_64", (3, 8)),
        ("cp312-abi3-any", (3, 12)),
        ("cp39.cp310-abi3-any", (3, 9)),
        ("cp3-abi3-any", (3, 0)),
        ("cp311-cp311-any", None),
        ("py3-none-any", None),
    ],
)
def test_what_tags_promise(text: str, version: tuple[int, int] | None) -> None:
    assert promised_python(tags(text)) == version


def test_a_tag_that_is_kept() -> None:
    elf = module("PyList_New", "PyType_FromModuleAndSpec")
    assert stable_abi_findings(elf, tags("cp310-abi3-any")) == ()
    assert stable_abi_findings(elf, tags("cp311-cp311-any")) == ()


def test_a_tag_for_pythons_that_are_too_old() -> None:
    elf = module("PyList_New", "PyType_FromModuleAndSpec")
    (finding,) = stable_abi_findings(elf, tags("cp38-abi3-any"), file="m.abi3.so")
    assert (finding.code, finding.severity) == ("newer-stable-abi", Severity.NOTE)
    assert (finding.symbol, finding.file) == ("PyType_FromModuleAndSpec", "m.abi3.so")
    assert "3.8" in finding.message
    assert "3.10" in finding.message
    for version, severity in (((3, 9), Severity.LIKELY), ((3, 10), Severity.NOTE)):
        python = HostPython(implementation="cpython", version=version)
        (finding,) = stable_abi_findings(elf, tags("cp38-abi3-any"), python=python)
        assert finding.severity is severity


def test_a_tag_that_is_not_kept() -> None:
    elf = module("_PyA", "_PyB", "_PyC", "_PyD", "_PyE")
    (finding,) = stable_abi_findings(elf, tags("cp38-abi3-any"))
    assert (finding.code, finding.severity) == ("outside-stable-abi", Severity.LIKELY)
    assert "_PyA, _PyB, _PyC and 2 more" in finding.message


def test_what_came_with_a_newer_python_is_not_there() -> None:
    elf = module("PyList_New", "PyCMethod_New", "PyModule_AddObjectRef")
    (finding,) = new_symbol_findings(elf, python=python(3, 8), file="m.so")
    assert finding.severity is Severity.FATAL
    assert "requires Python 3.10 or later, but the host has 3.8" in finding.message
    (finding,) = new_symbol_findings(elf, python=python(3, 9))
    assert finding.symbol == "PyModule_AddObjectRef"
    assert new_symbol_findings(elf, python=python(3, 10)) == ()
    assert new_symbol_findings(elf, python=None) == ()


def test_functions_that_are_promised_later_than_they_came_are_not_missed() -> None:
    elf = module("PyUnicode_AsUTF8AndSize", "PyObject_GetBuffer")
    assert new_symbol_findings(elf, python=python(3, 8)) == ()
    assert new_symbol_findings(module(weak=("PyCMethod_New",)), python=python(3, 8)) == ()


def python(major: int, minor: int) -> HostPython:
    return HostPython(implementation="cpython", version=(major, minor))
