"""The hosts that ``potluck wheel`` commands name, and the Python on them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.errors import HostError, UsageError

if TYPE_CHECKING:
    from potluck.portability.hosts.host import Host, HostPython

HostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        metavar="HOST",
        help="A file with the output of potluck probe --json on a machine, or the name of a known "
        "host (debian-12-x86_64). Can be repeated. Default: this machine.",
        show_default=False,
    ),
]
PythonOption = Annotated[
    str,
    typer.Option(
        "--python",
        metavar="VERSION",
        help="CPython version to install for, for example 3.12 or 3.13t, instead of the host's "
        "own.",
        show_default=False,
    ),
]

_PYTHON = re.compile(r"(3)\.(\d{1,2})(t?)")


def chosen_python(text: str) -> HostPython:
    """Return the CPython that an option names. Raises ``UsageError`` for what is no version."""
    from potluck.portability.hosts.host import HostPython

    match = _PYTHON.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--python {text} is not a CPython version", hint="for example 3.12 or 3.13t"
        )
    return HostPython(
        implementation="cpython",
        version=(int(match[1]), int(match[2])),
        is_free_threaded=bool(match[3]),
    )


def with_python(hosts: Iterable[Host], python: HostPython) -> list[Host]:
    """Return the hosts with this Python instead of their own."""
    return [replace(each, python=python) for each in hosts]


def named_host(text: str) -> Host:
    """Return the host in a file, or one that comes with Potluck. Raises ``UsageError``."""
    from potluck.portability.hosts.document import read_host_file
    from potluck.portability.hosts.shipped import load_shipped_host

    path = Path(text)
    try:
        return read_host_file(path) if path.is_file() else load_shipped_host(text)
    except HostError as error:
        raise UsageError(f"--host {text}: {error.message}", hint=error.hint) from None


def this_host() -> Host:
    """Return the description of this machine."""
    from potluck.portability.hosts.installed import describe_host

    return describe_host()
