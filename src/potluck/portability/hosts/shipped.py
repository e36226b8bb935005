"""Hosts that are shipped with Potluck: what policies promise, and distributions as released.

The descriptions in ``hosts/data/`` are made by ``tools/hosts`` from auditwheel's policies and from
the distributions' own packages. Symbols are in one shared file.
"""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from types import MappingProxyType
from typing import Annotated

import msgspec

from potluck.errors import HostError
from potluck.portability.hosts.document import read_host
from potluck.portability.hosts.host import Host, HostPython
from potluck.portability.hosts.shared_symbols import SharedSymbols

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _Alias(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Another name for a host, and why that host's description applies to it.

    ``is_base``: it has more than that host, so the description is incomplete for it; ``adds`` are
    additional libraries. ``tegra_release`` is that of Jetson Linux on a Jetson; ``python`` is the
    version of CPython if it differs from that of the other host; ``page_bytes`` is the size of the
    pages of its kernel, if that is known.
    """

    host: _Text
    because: _Text
    is_base: bool = False
    tegra_release: tuple[int, ...] | None = None
    adds: tuple[_Text, ...] = ()
    python: tuple[int, int] | None = None
    page_bytes: int | None = None


class _Aliases(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    aliases: dict[_Text, _Alias]


@functools.cache
def shipped_hosts() -> Mapping[str, str]:
    """Return the names that ``load_shipped_host`` accepts, each with the file that it is
    read from.
    """
    files = resources.files(__package__) / "data"
    described = {
        each.name.removesuffix(".json"): each.name
        for each in files.iterdir()
        if each.name.endswith(".json")
    }
    aliases = {name: described[alias.host] for name, alias in _aliases().items()}
    return MappingProxyType(dict(sorted({**described, **aliases}.items())))


def load_shipped_host(name: str) -> Host:
    """Return the host with this name. Raise ``HostError`` if there is none."""
    file = shipped_hosts().get(name)
    if file is None:
        close = difflib.get_close_matches(name, shipped_hosts(), n=3, cutoff=0.3)
        raise HostError(
            f"no host named {name!r} comes with Potluck",
            hint=f"similar names: {', '.join(close)}" if close else "name a file",
        )
    data = (resources.files(__package__) / "data" / file).read_bytes()
    host = _with_symbols(read_host(msgspec.json.decode(data)))
    alias = _aliases().get(name)
    if alias is None:
        return host
    python = host.python
    if alias.python is not None:
        python = HostPython(implementation="cpython", version=alias.python)
    return replace(
        host,
        name=name,
        python=python,
        origin=f"{host.origin}; {alias.because}",
        is_complete=host.is_complete and not alias.is_base,
        page_bytes=alias.page_bytes,
        tegra_release=alias.tegra_release,
        other_libraries=host.other_libraries | set(alias.adds),
    )


def _with_symbols(host: Host) -> Host:
    """Return the host with its symbols, which are in the shared file."""
    symbols = _shared_symbols().of(host.name)
    libraries = tuple(
        replace(each, symbols=symbols[each.soname]) if each.soname in symbols else each
        for each in host.libraries
    )
    return replace(host, libraries=libraries)


@functools.cache
def _shared_symbols() -> SharedSymbols:
    data = (resources.files(__package__) / "data/shared/symbols.json").read_bytes()
    return msgspec.json.decode(data, type=SharedSymbols)


@functools.cache
def _aliases() -> Mapping[str, _Alias]:
    text = (resources.files(__package__) / "data/aliases.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), _Aliases).aliases
