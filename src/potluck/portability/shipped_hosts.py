"""Hosts that come with Potluck: what policies promise, and distributions as they were released.

The descriptions in ``hosts/`` are made by ``tools/hosts`` from auditwheel's policies and from the
distributions' own packages.
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
from potluck.portability.host import Host
from potluck.portability.host_document import read_host

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _Alias(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Another name of a host, and why what is known of that one holds for it.

    ``is_base``: it has more than that one, whose description is not complete for it.
    """

    host: _Text
    because: _Text
    is_base: bool = False


class _Aliases(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    aliases: dict[_Text, _Alias]


@functools.cache
def shipped_hosts() -> Mapping[str, str]:
    """The names that ``load_shipped_host`` takes, each with that of the file it is read from."""
    files = resources.files("potluck.portability") / "hosts"
    described = {
        each.name.removesuffix(".json"): each.name
        for each in files.iterdir()
        if each.name.endswith(".json")
    }
    aliases = {name: described[alias.host] for name, alias in _aliases().items()}
    return MappingProxyType(dict(sorted({**described, **aliases}.items())))


def load_shipped_host(name: str) -> Host:
    """The host of that name. Raises HostError if none has it."""
    file = shipped_hosts().get(name)
    if file is None:
        close = difflib.get_close_matches(name, shipped_hosts(), n=3, cutoff=0.3)
        raise HostError(
            f"no host named {name!r} comes with Potluck",
            hint=f"there are {', '.join(close)} and others" if close else "name a file",
        )
    data = (resources.files("potluck.portability") / "hosts" / file).read_bytes()
    host = read_host(msgspec.json.decode(data))
    alias = _aliases().get(name)
    if alias is None:
        return host
    return replace(
        host,
        name=name,
        origin=f"{host.origin}; {alias.because}",
        is_complete=host.is_complete and not alias.is_base,
    )


@functools.cache
def _aliases() -> Mapping[str, _Alias]:
    text = (resources.files("potluck.portability") / "hosts/aliases.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), _Aliases).aliases
