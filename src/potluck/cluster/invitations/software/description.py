"""The program with which an invited machine describes itself: an archive that needs only Python.

It contains the modules that describe this machine for ``potluck probe``, which only import the
standard library, so both descriptions are alike.
"""

from __future__ import annotations

import functools
import io
import zipfile
from importlib import resources

_MODULES = (
    "__init__",
    "errors",
    "uname",
    "version",
    *(
        f"portability/{name}"
        for name in (
            "__init__",
            "elf/__init__",
            "elf/defined_symbols",
            "elf/machines",
            "hosts/__init__",
            "hosts/amd_architectures",
            "hosts/c_library",
            "hosts/host",
            "hosts/installed",
            "hosts/library_file",
            "hosts/loader_paths",
            "hosts/root_files",
            "hosts/symbol_set",
            "hosts/writing",
        )
    ),
)
"""The imports of ``portability.hosts.{installed,writing}``; a test runs them."""

_MAIN = """\
import sys

from potluck.errors import PotluckError
from potluck.portability.hosts.installed import describe_host
from potluck.portability.hosts.writing import encoded, host_document

try:
    sys.stdout.buffer.write(encoded(host_document(describe_host())))
except PotluckError as error:
    sys.exit(f"error: {error.message}")
"""

_TIME = (1980, 1, 1, 0, 0, 0)
"""The oldest time that an archive can have: the same modules produce the same archive."""


@functools.cache
def description_program() -> bytes:
    """Return the archive. It prints a document of schema ``potluck.host/1``."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in _MODULES:
            source = resources.files("potluck").joinpath(f"{name}.py").read_bytes()
            archive.writestr(_member(f"potluck/{name}.py"), source)
        archive.writestr(_member("__main__.py"), _MAIN)
    return made.getvalue()


def _member(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name, _TIME)
    member.compress_type = zipfile.ZIP_DEFLATED
    return member
