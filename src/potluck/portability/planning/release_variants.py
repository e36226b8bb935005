"""The variants of a release (PEP 825): their properties, and those that a host can use.

Properties come from the index's file about all variants of the release or, if the index does not
list it, from one wheel for each label. Invalid metadata makes variants be ignored; it is never an
error.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from potluck.errors import WheelDownloadError, WheelFileError
from potluck.portability.checks.variant_properties import (
    Namespace,
    has_any,
    missing_properties,
    variant_rank,
)
from potluck.portability.planning.index import Index, IndexFile, Release
from potluck.portability.planning.wheel_reader import WheelReader
from potluck.portability.wheels.variants import Variant, namespace_order, parse_variants

_MAX_FILE_BYTES = 1 << 20
"""An index's file has about 1 KB for each label."""

_TRUE = 'python_version >= "0"'

_FALSE = 'python_version < "0"'

_QUOTED = r"""(?:"([^"]*)"|'([^']*)')"""

_LABEL = re.compile(rf"\bvariant_label\s*(==|!=)\s*{_QUOTED}")

_SET = re.compile(rf"{_QUOTED}\s*\b(not\s+)?in\s+variant_(namespaces|features|properties)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedVariant:
    """Why a variant whose tags fit a host is not chosen there.

    ``is_certain``: the host is known not to have its properties.
    """

    label: str
    reason: str
    is_certain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HostVariants:
    """The variants of a release on a host. ``labels`` are the usable ones, the preferred first;
    ``not_judged`` are the labels of those of whose properties some are unknown.
    """

    labels: tuple[str, ...] = ()
    not_judged: tuple[str, ...] = ()
    unused: tuple[UnusedVariant, ...] = ()


class VariantReader:
    """Reads the properties of variants, each once. Not thread-safe."""

    def __init__(self, reader: WheelReader) -> None:
        self._reader = reader
        self._of_files: dict[str, Mapping[str, Variant] | str] = {}
        self._of_wheels: dict[str, Variant | str] = {}
        self._described_wheels: dict[str, Variant] = {}

    def on_host(
        self, release: Release, wheels: Sequence[IndexFile], namespaces: Mapping[str, Namespace]
    ) -> HostVariants:
        """Return the variants of a release among ``wheels``, whose tags fit a host with these
        namespaces.
        """
        found = {
            label: self._variant(release, label, wheel)
            for label, wheel in _first_by_label(wheels).items()
        }
        for wheel in wheels:
            if isinstance(variant := found[wheel.label], Variant):
                self._described_wheels[wheel.url] = variant
        order: tuple[str, ...] = ()
        try:
            order = namespace_order(each for each in found.values() if isinstance(each, Variant))
        except ValueError as error:
            found = dict.fromkeys(found, str(error))
        usable = []
        not_judged = []
        unused = []
        for label, variant in found.items():
            if isinstance(variant, str):
                unused.append(UnusedVariant(label=label, reason=variant, is_certain=False))
                continue
            missing = missing_properties(variant, namespaces)
            if missing.absent:
                reason = f"the host does not have {', '.join(missing.absent)}"
                unused.append(UnusedVariant(label=label, reason=reason, is_certain=True))
            elif missing.unknown:
                reason = f"it is not known whether the host has {', '.join(missing.unknown)}"
                unused.append(UnusedVariant(label=label, reason=reason, is_certain=False))
                not_judged.append(label)
            else:
                usable.append(variant)
        usable.sort(key=lambda each: variant_rank(each, order, namespaces))
        return HostVariants(
            labels=tuple(each.label for each in usable),
            not_judged=tuple(not_judged),
            unused=tuple(sorted(unused, key=lambda each: each.label)),
        )

    def facts(self, wheel: IndexFile, namespaces: Mapping[str, Namespace]) -> VariantFacts:
        """Return what markers can test of a wheel on a host with these namespaces. A variant is
        one that ``on_host`` has read.
        """
        variant = self._described_wheels.get(wheel.url)
        if variant is None:
            return VariantFacts()
        properties = frozenset(
            (name, feature, value)
            for name, features in variant.properties.items()
            for feature, values in features.items()
            for value in values
            if has_any(namespaces.get(name), feature, (value,))
        )
        return VariantFacts(label=variant.label, properties=properties)

    def _variant(self, release: Release, label: str, wheel: IndexFile) -> Variant | str:
        """Return a variant, or why its properties are unknown."""
        file = release.variants_file
        if file is None or wheel.is_named:
            return self._of_wheel(wheel)
        found = self._of_file(file)
        if isinstance(found, str):
            return found
        return found.get(label) or f"{file.filename} does not describe it"

    def _of_file(self, file: IndexFile) -> Mapping[str, Variant] | str:
        if file.url not in self._of_files:
            try:
                self._of_files[file.url] = parse_variants(_contents(file, self._reader.index))
            except (ValueError, OSError) as error:
                self._of_files[file.url] = f"{file.filename} {error}"
            except WheelDownloadError as error:
                self._of_files[file.url] = f"{file.filename} cannot be read: {error.message}"
        return self._of_files[file.url]

    def _of_wheel(self, file: IndexFile) -> Variant | str:
        if file.url not in self._of_wheels:
            try:
                self._of_wheels[file.url] = self._reader.variant(file)
            except WheelFileError as error:
                self._of_wheels[file.url] = error.problem
        return self._of_wheels[file.url]


def _first_by_label(wheels: Iterable[IndexFile]) -> dict[str, IndexFile]:
    """Return one wheel for each label: all that have it have the same properties."""
    found: dict[str, IndexFile] = {}
    for each in wheels:
        found.setdefault(each.label, each)
    return found


def _contents(file: IndexFile, index: Index) -> bytes:
    with tempfile.TemporaryDirectory(prefix="potluck-variants-") as folder:
        path = Path(folder, "variants.json")
        index.fetch(file, path, most_bytes=_MAX_FILE_BYTES)
        return path.read_bytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantFacts:
    """The facts about a chosen wheel on a host that markers can test.

    ``label`` is empty if the wheel is not a variant. ``properties`` are those of the wheel that the
    host has, each with its namespace, feature and value.
    """

    label: str = ""
    properties: frozenset[tuple[str, str, str]] = frozenset()


def resolved_variant_markers(line: str, facts: VariantFacts) -> str:
    """Return a requirement in which the tests of variants are replaced by markers that are always
    true, or never.

    Markers about variants (PEP 825) are unknown to ``packaging``: ``lib; "nvidia :: sm_arch ::
    90_real" in variant_properties`` depends on the wheel that was chosen.
    """
    sets: dict[str, Set[tuple[str, ...]]] = {
        "namespaces": {each[:1] for each in facts.properties},
        "features": {each[:2] for each in facts.properties},
        "properties": facts.properties,
    }

    def of_label(match: re.Match[str]) -> str:
        is_equal = facts.label == (match[2] or match[3] or "")
        return _TRUE if is_equal == (match[1] == "==") else _FALSE

    def of_set(match: re.Match[str]) -> str:
        parts = tuple(each.strip() for each in (match[1] or match[2] or "").split("::"))
        return _TRUE if (parts in sets[match[4]]) == (match[3] is None) else _FALSE

    requirement, separator, marker = line.partition(";")
    return requirement + separator + _SET.sub(of_set, _LABEL.sub(of_label, marker))
