"""Whether an extension module keeps Python's stable ABI, and from which Python on it has what it
calls.

A wheel tagged ``cp38-abi3`` promises to call only functions that every CPython since 3.8 has. No
linker checks that when the wheel is built. The stable ABI's symbols and the versions that added
them are CPython's own list (``Misc/stable_abi.toml``), as the package ``abi3info`` ships it. An
older CPython may have had a function before it was promised, so what asks for too new a Python is
likely to fail there, not certain. What is called by way of structures is not seen: macros that look
into an object's fields leave no symbol.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.tags import Tag

from potluck.portability.elf_file import ElfFile
from potluck.portability.finding import Finding, Severity
from potluck.portability.host import HostPython
from potluck.quantities import format_few

PythonVersion = tuple[int, int]

_NAME = re.compile(r"_?Py(?:_|(?!Array_)[A-Z])")
"""How names of Python's API begin; those of NumPy's begin with ``PyArray_``."""

_NOT_ON_LINUX = ("MS_WINDOWS", "USE_STACKCHECK", "Py_REF_DEBUG")
"""Conditions of the list that no ordinary build for Linux meets."""

_FIRST_STABLE: PythonVersion = (3, 2)
_MOST_NAMED = 3
"""Symbols in one message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StableAbiUse:
    """Which of Python's symbols an extension uses.

    ``outside`` are those that are in no stable ABI; ``least_python`` is the first version whose
    stable ABI has all others, and ``newest`` are those that it is the first to have.
    """

    outside: tuple[str, ...]
    least_python: PythonVersion
    newest: tuple[str, ...]

    @property
    def is_stable(self) -> bool:
        """Whether an ``abi3`` tag is kept."""
        return not self.outside


def stable_abi_use(elf: ElfFile) -> StableAbiUse:
    """Of the symbols that the file leaves to others. Weak ones may be missing and do not count."""
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
    elf: ElfFile, tags: Iterable[Tag], *, python: HostPython | None = None, file: str = ""
) -> tuple[Finding, ...]:
    """How ``elf`` breaks what an ``abi3`` tag among the wheel's ``tags`` promises; nothing without
    such a tag, or if it is kept.

    What the host's ``python`` is too old to promise is likely to be missing there.
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
                message=f"it is tagged abi3 and uses {format_few(use.outside, _MOST_NAMED)}, which "
                "Python does not promise to keep",
                file=file,
                symbol=use.outside[0],
                way_out="use it with the Python versions that its makers test",
            )
        )
    if use.least_python > promised:
        is_too_old = python is not None and python.version < use.least_python
        findings.append(
            Finding(
                code="newer-stable-abi",
                severity=Severity.LIKELY if is_too_old else Severity.NOTE,
                message=f"it is tagged for Python {_dotted(promised)} and later, and uses "
                f"{format_few(use.newest, _MOST_NAMED)}, stable since Python "
                f"{_dotted(use.least_python)}",
                file=file,
                symbol=use.newest[0],
                way_out=f"use Python {_dotted(use.least_python)} or later, or an older release",
            )
        )
    return tuple(findings)


def promised_python(tags: Iterable[Tag]) -> PythonVersion | None:
    """The oldest Python of the ``abi3`` tags (``cp38-abi3``: 3.8); None without one."""
    versions = [
        (int(tag.interpreter[2]), int(tag.interpreter[3:] or 0))
        for tag in tags
        if tag.abi == "abi3" and tag.interpreter[:2] == "cp" and tag.interpreter[2:].isdecimal()
    ]
    return min(versions, default=None)


@functools.cache
def _versions_added() -> Mapping[str, PythonVersion]:
    """Symbols of the stable ABI on Linux. The package is imported for ``abi3`` wheels alone, since
    that takes time.
    """
    from abi3info import DATAS, FUNCTIONS

    return {
        entry.symbol.name: (entry.added.major, entry.added.minor)
        for entry in (*FUNCTIONS.values(), *DATAS.values())
        if entry.ifdef is None or entry.ifdef.name not in _NOT_ON_LINUX
    }


def _dotted(version: PythonVersion) -> str:
    return f"{version[0]}.{version[1]}"
