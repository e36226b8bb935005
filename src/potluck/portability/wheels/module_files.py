"""Which of a module's files Python loads.

CPython's own loader only knows ``NAME.cpython-311-x86_64-linux-gnu.so``, ``NAME.abi3.so`` and
``NAME.so``, in this order (Python/dynload_shlib.c; ``importlib.machinery.EXTENSION_SUFFIXES``).
Files with other names, such as ``MPI.mpich.cpython-311-x86_64-linux-gnu.so``, are loaded by code of
the package, which may choose among them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence

from potluck.portability.hosts.host import Host, HostPython

_ARCHITECTURES = {"i686": "i386", "armv7l": "arm", "ppc64le": "powerpc64le"}
"""Names in these suffixes that differ from those of ``uname -m`` (Debian's multiarch tuples)."""


def file_of_module(paths: Sequence[str], host: Host) -> str | None:
    """Return the file that the host's Python loads of those of one module; None if that is
    unknown, or if Python itself loads none of several.
    """
    if len(paths) == 1:
        return paths[0]
    python = host.python
    if python is None or python.implementation != "cpython":
        return None
    for suffix in _suffixes(python, host.machine):
        for path in paths:
            if re.fullmatch(suffix, posixpath.basename(path).partition(".")[2]):
                return path
    return None


def is_for_other_python(path: str, host: Host) -> bool:
    """Return whether the name of an extension module says that it is for a CPython other than the
    host's.
    """
    suffix = posixpath.basename(path).partition(".")[2]
    python = host.python
    if python is None or not re.fullmatch(r"cpython-\d+\w*-[\w-]+\.so", suffix):
        return False
    is_cpython = python.implementation == "cpython"
    return not (is_cpython and re.fullmatch(next(_suffixes(python, host.machine)), suffix))


def _suffixes(python: HostPython, machine: str) -> Iterator[str]:
    """Yield patterns of what follows the module's name and a dot, in the order of precedence."""
    abi = python.name.replace(".", "")
    architecture = re.escape(_ARCHITECTURES.get(machine, machine))
    yield rf"cpython-{abi}m?-{architecture}-linux-\w+\.so"  # "m" up to Python 3.7
    if not python.is_free_threaded:
        yield r"abi3\.so"
    if python.version >= (3, 15):
        yield r"abi3t\.so"
    yield r"so"
