"""What rules about features ask of a wheel's ELF files: read once, small enough to be kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from potluck.portability.constant_functions import constant_results
from potluck.portability.cuda_needs import CudaNeeds
from potluck.portability.elf_file import ElfFile
from potluck.portability.elf_image import ElfData
from potluck.portability.feature_rules import FeatureRules


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """Of one file: which of the functions that rules name it ``exports``, what those ``results``
    are that only return a number, and the CUDA toolkit that one of them told (empty without).
    """

    machine: str
    exports: frozenset[str]
    results: Mapping[str, int]
    toolkit: tuple[int, ...]


def file_facts(
    rules: FeatureRules, elf: ElfFile, data: ElfData, cuda: CudaNeeds | None
) -> FileFacts:
    """The facts of ``data``, of which ``elf`` and ``cuda`` were read."""
    asked = frozenset((*rules.functions, *rules.toolkit_functions))
    exports = asked & {symbol.name for symbol in elf.defined}
    results = constant_results(data, sorted(exports))
    told = [results[name] for name in rules.toolkit_functions if results.get(name, 0) > 0]
    return FileFacts(
        machine=elf.machine,
        exports=exports,
        results=results,
        toolkit=toolkit_of_number(max(told)) if told else cuda.toolkit if cuda else (),
    )


def toolkit_of_number(number: int) -> tuple[int, int]:
    """``CUDA_VERSION`` of ``cuda.h`` as numbers: 13040 is (13, 4)."""
    return number // 1000, number % 1000 // 10
