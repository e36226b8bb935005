"""Markers about variants in the requirements of a wheel (PEP 825), which ``packaging`` does not
know.

``lib; "nvidia :: sm_arch :: 90_real" in variant_properties`` depends on the wheel that was chosen.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass

_TRUE = 'python_version >= "0"'
_FALSE = 'python_version < "0"'

_QUOTED = r"""(?:"([^"]*)"|'([^']*)')"""
_LABEL = re.compile(rf"\bvariant_label\s*(==|!=)\s*{_QUOTED}")
_SET = re.compile(rf"{_QUOTED}\s*\b(not\s+)?in\s+variant_(namespaces|features|properties)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantFacts:
    """What markers can test of a chosen wheel on a host.

    ``label`` is empty if the wheel is not a variant. ``properties`` are those of the wheel that the
    host has, each with its namespace, feature and value.
    """

    label: str = ""
    properties: frozenset[tuple[str, str, str]] = frozenset()


def resolved_variant_markers(line: str, facts: VariantFacts) -> str:
    """Return a requirement in which the tests of variants are replaced by markers that are always
    true, or never.
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
