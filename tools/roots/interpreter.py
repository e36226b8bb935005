"""A Python 3.11 that starts with any glibc since 2.17, and a program that queries the linker.

No distribution has a Python of that version for its old releases. Debian's static libpython has
symbols without versions, so that it can be linked against an older C library; what that lacks is in
``older_libc.c``. Modules that Debian builds as shared objects load where their needs are met.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tools.roots.made_once import FOLDER, digest, made_once
from tools.roots.package_set import interpreter_parts
from tools.roots.unpack import unpack
from tools.roots.zig import compile_c

_HERE = Path(__file__).parent
_OLDEST_GLIBC = "2.17"
_PROGRAMS = {"python3.11": "python.c", "try_load": "try_load.c"}
_SHIM = "older_libc.c"


def portable_python(machine: str) -> Path:
    """Return a PYTHONHOME with ``bin/python3.11``, ``bin/try_load`` and ``lib/python3.11``.

    It is built if it is missing. Raises as ``unpack`` and ``compile_c`` do.
    """
    package_set = interpreter_parts(machine)
    sources = [(_HERE / name).read_bytes() for name in (*_PROGRAMS.values(), _SHIM)]
    path = FOLDER / f"portable-{package_set.name}-{digest(package_set.digest.encode(), *sources)}"
    with made_once(path) as made:
        if made:
            unpack(package_set, made / "parts", FOLDER / "packages")
            parts = made / "parts" / "usr" / "lib"
            (made / "bin").mkdir()
            for program, main in _PROGRAMS.items():
                compile_c(
                    [_HERE / main, _HERE / _SHIM],
                    made / "bin" / program,
                    target=f"{machine}-linux-gnu.{_OLDEST_GLIBC}",
                    options=_link_options(parts / f"{machine}-linux-gnu"),
                )
            (made / "lib").mkdir()
            (parts / "python3.11").rename(made / "lib" / "python3.11")
            shutil.rmtree(made / "parts")
    return path


def _link_options(libraries: Path) -> list[str]:
    """Return options that link all of libpython and export it as interpreters do."""
    return [
        "-rdynamic",
        "-Wl,--whole-archive",
        str(libraries / "libpython3.11.a"),
        "-Wl,--no-whole-archive",
        str(libraries / "libexpat.a"),
        str(libraries / "libz.a"),
        *("-lpthread", "-ldl", "-lutil", "-lm"),
    ]
