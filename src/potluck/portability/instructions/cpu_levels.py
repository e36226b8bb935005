"""The flags of ``/proc/cpuinfo`` that levels of x86-64 and names of files stand for."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import PurePosixPath
from typing import Annotated

import msgspec

_Flags = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class _Level(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    flags: _Flags


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    level: tuple[_Level, ...]
    variants: dict[str, dict[str, _Flags]]


@functools.cache
def _table() -> _Table:
    file = resources.files(__package__).joinpath("cpu_levels.toml")
    return msgspec.convert(tomllib.loads(file.read_text("utf-8")), _Table)


@functools.cache
def level_flags() -> Mapping[str, frozenset[str]]:
    """Return the flags of ``/proc/cpuinfo`` of each x86-64 level, including those of lower levels,
    in ascending order.
    """
    flags: frozenset[str] = frozenset()
    by_level = {}
    for level in _table().level:
        flags |= frozenset(level.flags)
        by_level[level.name] = flags
    return by_level


def variant_flags(machine: str, path: str) -> frozenset[str]:
    """Return the flags that the name of a file stands for: ``avx2`` for ``libfoo_avx2.so``."""
    variants = _table().variants.get(machine, {})
    stem = PurePosixPath(path).name.partition(".so")[0].lower()
    parts = re.split(r"[^a-z0-9]+", stem)
    return frozenset(flag for part in parts for flag in variants.get(part, ()))
