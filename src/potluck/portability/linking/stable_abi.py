"""Check whether an extension module conforms to Python's stable ABI, and which Python it needs at
least.

A wheel tagged ``cp38-abi3`` promises to call only functions that every CPython since 3.8 has. No
linker checks that when the wheel is built. The stable ABI's symbols and the versions that added
them are CPython's own list (``Misc/stable_abi.toml``), as the package ``abi3info`` ships it. An
older CPython may have had a function before it became stable, so an extension that requires a newer
Python is likely to fail there, but not certain to. Access through structures is not detected:
macros that read an object's fields leave no symbol.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from potluck.portability.elf.file import ElfFile
from potluck.portability.finding import Finding, Severity
from potluck.portability.hosts.host import HostPython
from potluck.portability.shipped_toml import read_rows
from potluck.types.quantities import format_few

PythonVersion = tuple[int, int]

_NAME = re.compile(r"_?Py(?:_|(?!Array_)[A-Z])")
"""Prefixes of Python's API; those of NumPy's begin with ``PyArray_``."""

_STABLE_TAG = re.compile(r"cp(\d)(\d*)-abi3-")

_NOT_ON_LINUX = ("MS_WINDOWS", "USE_STACKCHECK", "Py_REF_DEBUG")
"""Conditions in the list that no ordinary Linux build meets."""

_FIRST_STABLE: PythonVersion = (3, 2)
_MOST_NAMED = 3
"""Limit of symbols in one message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StableAbiUse:
    """Which of Python's symbols an extension uses.

    ``outside`` are those that are not in the stable ABI; ``least_python`` is the first version
    whose stable ABI has all others, and ``newest`` are the symbols that were added in it.
    """

    outside: tuple[str, ...]
    least_python: PythonVersion
    newest: tuple[str, ...]


def stable_abi_use(elf: ElfFile) -> StableAbiUse:
    """Return the use by a file's undefined symbols. Weak ones may be missing and do not count."""
    names = {
        symbol.name for symbol in elf.undefined if not symbol.is_weak and _NAME.match(symbol.name)
    }
    added = _versions_added()
    stable = sorted(names & added.keys())
    least = max((added[name] for name in stable), default=_FIRST_STABLE)
    return StableAbiUse(
        outside=tuple(sorted(names - added.keys())),
        least_python=least,
        newest=tuple(name for name in stable if added[name] == least),
    )


def stable_abi_findings(
    elf: ElfFile, tags: Iterable[str], *, python: HostPython | None = None, file: str = ""
) -> tuple[Finding, ...]:
    """Return how ``elf`` violates an ``abi3`` tag among the wheel's ``tags``; nothing without such
    a tag, or if it conforms.

    Symbols newer than the stable ABI of the host's ``python`` are likely to be missing there.
    """
    promised = promised_python(tags)
    if promised is None:
        return ()
    use = stable_abi_use(elf)
    findings = []
    if use.outside:
        findings.append(
            Finding(
                code="outside-stable-abi",
                severity=Severity.LIKELY,
                message=f"it is tagged abi3 and uses {format_few(use.outside, _MOST_NAMED)},"
                " which is not part of the stable ABI",
                file=file,
                symbol=use.outside[0],
                fix="use it with the Python versions that its authors test",
            )
        )
    if use.least_python > promised:
        is_too_old = python is not None and python.version < use.least_python
        findings.append(
            Finding(
                code="newer-stable-abi",
                severity=Severity.LIKELY if is_too_old else Severity.NOTE,
                message=f"it is tagged for Python {_dotted(promised)} and later, but uses"
                f" {format_few(use.newest, _MOST_NAMED)}, stable since Python"
                f" {_dotted(use.least_python)}",
                file=file,
                symbol=use.newest[0],
                fix=f"use Python {_dotted(use.least_python)} or later, or an older release",
            )
        )
    return tuple(findings)


def python_findings(
    elf: ElfFile, tags: Iterable[str], *, python: HostPython | None, file: str
) -> tuple[Finding, ...]:
    """Return findings about the functions of Python that ``elf`` calls. What is certainly missing
    is not also reported as likely missing.
    """
    missing = new_symbol_findings(elf, python=python, file=file)
    stable = stable_abi_findings(elf, tags, python=python, file=file)
    left = [each for each in stable if not missing or each.code != "newer-stable-abi"]
    return (*missing, *left)


def new_symbol_findings(
    elf: ElfFile, *, python: HostPython | None, file: str = ""
) -> tuple[Finding, ...]:
    """Return findings about functions that are newer than the host's Python, whatever the
    tags say.
    """
    if python is None:
        return ()
    added = new_python_symbols()
    missing = sorted(
        (added[symbol.name], symbol.name)
        for symbol in elf.undefined
        if not symbol.is_weak and added.get(symbol.name, _FIRST_STABLE) > python.version
    )
    if not missing:
        return ()
    newest, _ = missing[-1]
    names = [name for _, name in missing]
    return (
        Finding(
            code="newer-python-symbol",
            severity=Severity.FATAL,
            message=f"it calls {format_few(names, _MOST_NAMED)}, which requires Python"
            f" {_dotted(newest)} or later, but the host has {_dotted(python.version)}",
            file=file,
            symbol=names[-1],
            fix=f"use Python {_dotted(newest)} or later, or an older release",
        ),
    )


@functools.cache
def new_python_symbols() -> Mapping[str, PythonVersion]:
    """Return the functions known to be missing in older Pythons, with the first version of each."""
    added = read_rows(__package__, "python_symbols.toml", "added", dict[str, tuple[str, ...]])
    return {
        name: (int(version.partition(".")[0]), int(version.partition(".")[2]))
        for version, names in added.items()
        for name in names
    }


def promised_python(tags: Iterable[str]) -> PythonVersion | None:
    """Return the oldest Python of the ``abi3`` tags (``cp38-abi3``: 3.8); None without one.

    ``tags`` are expanded, as those of ``Distribution``.
    """
    matches = filter(None, map(_STABLE_TAG.match, tags))
    return min(((int(each[1]), int(each[2] or 0)) for each in matches), default=None)


@functools.cache
def _versions_added() -> Mapping[str, PythonVersion]:
    """Return the symbols of the stable ABI on Linux. The package is imported only for ``abi3``
    wheels, since that takes time.
    """
    from abi3info import DATAS, FUNCTIONS

    return {
        entry.symbol.name: (entry.added.major, entry.added.minor)
        for entry in (*FUNCTIONS.values(), *DATAS.values())
        if entry.ifdef is None or entry.ifdef.name not in _NOT_ON_LINUX
    }


def _dotted(version: PythonVersion) -> str:
    return f"{version[0]}.{version[1]}"
