"""Rules about what a build can and cannot do: one TOML file in ``features/`` per distribution.

A file begins with what is read from the ELF files of a wheel:

    schema = "potluck.features/1"
    distribution = "warp-lang"
    functions = ["wp_is_cuda_enabled"]    exports that rules name, or whose result they compare
    toolkit_functions = ["wp_cuda_…"]     exports that return CUDA's version, 13040 for 13.4

    [documents.NAME]                      title, url, and which copy of it was read

Then come rules. A rule applies if all conditions under ``when`` hold; without ``when``, always:

    [[rule]]
    name = "no-mathdx"                    the finding's code is "feature-no-mathdx"
    feature = "tile_fft on GPUs"          what does not work; empty for a plain note
    severity = "limit"                    limit, likely or note
    message = "…"                         in it {version}, {toolkit}, {driver}, {cuda}, {gpus} and
    fix = "…"                             {missing} stand for what is known; optional
    jetson_fix = "…"                      the same for a Jetson, where it is another one
    document = "NAME"                     where it was read
    [rule.when]
    version = ">=1.9,<1.14"               of the distribution (PEP 440)
    machine = ["aarch64"]                 of the files: one of these
    has_file = "warp/bin/*.so"            an ELF file of that name is in the wheel,
    lacks_file = "…"                        or none is
    fails_to_load = "…"                   an ELF file of that name does not load on the host
    exports = ["a", "b"]                  one of these is exported by some file,
    lacks_exports = ["a", "b"]              or none of them by any
    returns = { functions = ["a"], number = 0 }    one of these only returns that number
    toolkit = "<13"                       CUDA that it was built with, where that is known
    host_cuda = "<12.4"                   the newest CUDA that the host's driver runs, where there
                                            is one
    has_driver = true                     the host has NVIDIA's driver, or has none
    is_jetson = false                     the host is a Jetson, or is none
    gpu = "<7.5"                          the compute capability of one of its GPUs
    host_lacks = ["libOpenCL.so*"]        none of these is on the host, nor in the wheel
    cpu_lacks = ["avx2", "fma"]           the host's CPU lacks one of these, as /proc/cpuinfo has it

A condition about something that is unknown for a host (the CPU of a shipped description, the
libraries beyond a policy's list) is false: a rule never applies to what was not examined.
"""

from __future__ import annotations

import functools
import string
from importlib import resources
from typing import Literal

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from potluck.portability.cuda.table import Document
from potluck.portability.shipped_toml import read_toml

PLACEHOLDERS = frozenset({"version", "toolkit", "driver", "cuda", "gpus", "missing"})


class ReturnCondition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A condition: one of ``functions`` does nothing but return ``number``."""

    functions: tuple[str, ...]
    number: int


class Conditions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conditions that must all hold. Those that are not given are ignored."""

    version: str = ""
    machine: tuple[str, ...] = ()
    has_file: str = ""
    lacks_file: str = ""
    fails_to_load: str = ""
    exports: tuple[str, ...] = ()
    lacks_exports: tuple[str, ...] = ()
    returns: ReturnCondition | None = None
    toolkit: str = ""
    host_cuda: str = ""
    has_driver: bool | None = None
    is_jetson: bool | None = None
    gpu: str = ""
    host_lacks: tuple[str, ...] = ()
    cpu_lacks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for specifier in (self.version, self.toolkit, self.host_cuda, self.gpu):
            try:
                SpecifierSet(specifier)
            except InvalidSpecifier as error:
                raise ValueError(str(error)) from error

    @property
    def functions(self) -> frozenset[str]:
        """The functions that the conditions name."""
        compared = self.returns.functions if self.returns else ()
        return frozenset((*self.exports, *self.lacks_exports, *compared))


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One statement about a build, with its source."""

    name: str
    severity: Literal["limit", "likely", "note"]
    message: str
    document: str
    feature: str = ""
    fix: str = ""
    jetson_fix: str = ""
    when: Conditions = Conditions()

    def __post_init__(self) -> None:
        for text in (self.message, self.fix, self.jetson_fix):
            fields = {field for _, field, _, _ in string.Formatter().parse(text) if field}
            if unknown := fields - PLACEHOLDERS:
                raise ValueError(f"{self.name} has no {', '.join(sorted(unknown))} to fill in")
        if self.severity == "limit" and not self.feature:
            raise ValueError(f"{self.name} limits no feature")


class FeatureRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules for one distribution."""

    schema: Literal["potluck.features/1"]
    distribution: str
    documents: dict[str, Document]
    rule: tuple[Rule, ...]
    functions: tuple[str, ...] = ()
    toolkit_functions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if canonicalize_name(self.distribution) != self.distribution:
            raise ValueError(f"{self.distribution} is not a normalized project name")
        if uncited := {rule.document for rule in self.rule} ^ set(self.documents):
            raise ValueError(f"documents not listed, or not cited: {', '.join(sorted(uncited))}")
        named = frozenset().union(*(rule.when.functions for rule in self.rule))
        if wrong := named ^ set(self.functions):
            raise ValueError(f"functions not listed, or not used: {', '.join(sorted(wrong))}")
        names = [rule.name for rule in self.rule]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"rules twice: {', '.join(sorted(repeated))}")


def rule_files() -> tuple[str, ...]:
    """Return the distributions that have rules, in alphabetical order."""
    folder = resources.files(__package__)
    names = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def rules_for(distribution: str) -> FeatureRules | None:
    """Return the shipped rules for a distribution, by its name in any spelling; None if there are
    none.
    """
    return _shipped_rules(canonicalize_name(distribution))


@functools.cache
def _shipped_rules(name: str) -> FeatureRules | None:
    if name not in rule_files():
        return None
    return read_toml(__package__, f"{name}.toml", FeatureRules)
