"""All that a check asks of a wheel, whatever the host: read once, kept, and checked often.

Values only, which msgspec codes. Reading takes as long as the ELF files are large.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from potluck.errors import ElfError, NotLoadableError, WheelFileError
from potluck.portability.cpu_needs import CpuNeeds, cpu_needs
from potluck.portability.cuda_needs import CudaNeeds, read_cuda_needs
from potluck.portability.cuda_table import CudaTable, shipped_table
from potluck.portability.elf_file import ElfFile
from potluck.portability.elf_reader import read_elf
from potluck.portability.feature_facts import FileFacts, file_facts
from potluck.portability.feature_rules import FeatureRules, rules_for
from potluck.portability.opened_libraries import OpenedLibrary, opened_libraries
from potluck.portability.wheel_file import Distribution, open_package


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectNeeds:
    """One ELF file. ``facts`` are what rules about features ask; None without such rules."""

    path: str
    elf: ElfFile
    cpu: CpuNeeds
    opened: tuple[OpenedLibrary, ...]
    cuda: CudaNeeds | None
    facts: FileFacts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenObject:
    """An ELF file that cannot be read, and why."""

    path: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelNeeds:
    """A wheel, or a folder or file without a ``distribution``. ``file`` is its name."""

    file: str
    distribution: Distribution | None
    objects: tuple[ObjectNeeds, ...]
    broken: tuple[BrokenObject, ...]
    links: Mapping[str, str]


def read_needs(path: Path) -> WheelNeeds:
    """What a wheel, a folder or an ELF file needs.

    Raises ``WheelFileError`` if it cannot be read, is none of these, or has no ELF file in it
    although it is no wheel.
    """
    table = shipped_table()
    objects: list[ObjectNeeds] = []
    broken: list[BrokenObject] = []
    with open_package(path) as package:
        distribution = package.distribution
        rules = rules_for(distribution.name) if distribution else None
        for name, data in package.elf_files():
            try:
                objects.append(_read_object(name, data, rules, table))
            except NotLoadableError:
                continue
            except ElfError as error:
                broken.append(BrokenObject(path=name, problem=error.message))
        links = dict(package.links)
    if distribution is None and not objects:
        _refuse(path, broken)
    return WheelNeeds(
        file=path.name,
        distribution=distribution,
        objects=tuple(objects),
        broken=tuple(broken),
        links=links,
    )


def _read_object(
    name: str, data: bytes | mmap.mmap, rules: FeatureRules | None, table: CudaTable
) -> ObjectNeeds:
    elf = read_elf(data)
    cuda = read_cuda_needs(elf, data, table)
    return ObjectNeeds(
        path=name,
        elf=elf,
        cpu=cpu_needs(elf, data, path=name),
        opened=opened_libraries(elf, data),
        cuda=cuda,
        facts=file_facts(rules, elf, data, cuda) if rules else None,
    )


def _refuse(path: Path, broken: list[BrokenObject]) -> None:
    if broken:
        raise WheelFileError(str(path), broken[0].problem)
    raise WheelFileError(
        str(path),
        "there is nothing in it that a dynamic linker loads",
        hint="give a wheel, a shared library, a program, or a folder with some",
    )
