"""The facts about a wheel's ELF files that feature rules use: read once, small enough to cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from potluck.portability.cuda.needs import CudaNeeds
from potluck.portability.elf.file import ElfFile
from potluck.portability.elf.image import ElfData
from potluck.portability.features.rules import FeatureRules
from potluck.portability.instructions.constant_functions import constant_results


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """The facts about one file: which of the functions that rules name it ``exports``, the
    ``results`` of those that only return a number, and the CUDA toolkit that one of them returned
    (empty if none does).
    """

    machine: str
    exports: frozenset[str]
    results: Mapping[str, int]
    toolkit: tuple[int, ...]


def file_facts(
    rules: FeatureRules, elf: ElfFile, data: ElfData, cuda: CudaNeeds | None
) -> FileFacts:
    """Return the facts about ``data``, from which ``elf`` and ``cuda`` were read."""
    functions = frozenset((*rules.functions, *rules.toolkit_functions))
    exports = frozenset(symbol.name for symbol in elf.defined.named(functions))
    results = constant_results(data, sorted(exports))
    versions = [results[name] for name in rules.toolkit_functions if results.get(name, 0) > 0]
    return FileFacts(
        machine=elf.machine,
        exports=exports,
        results=results,
        toolkit=toolkit_of_number(max(versions)) if versions else cuda.toolkit if cuda else (),
    )


def toolkit_of_number(number: int) -> tuple[int, int]:
    """Return ``CUDA_VERSION`` of ``cuda.h`` as numbers: 13040 is (13, 4)."""
    return number // 1000, number % 1000 // 10
