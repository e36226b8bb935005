"""Variants of wheels: their labels in file names, and their properties (PEP 825, a draft)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

NULL = "null"
"""The label of the variant without properties, which every host can use."""

FILE = "variant.json"
"""The file in a wheel's metadata directory that describes the wheel's variant."""

_LABEL = re.compile(r"[0-9a-z_.]+")
_NAME = re.compile(r"[0-9a-z_]+")

_SCHEMA_VERSION = re.compile(r"/v(\d{1,9})\.\d{1,9}\.\d{1,9}\.json$")
_NEWEST_MAJOR = 1
"""Drafts of the format have the major version 0, the final one will have 1."""

Properties = Mapping[str, Mapping[str, tuple[str, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A variant: ``properties`` has the values of features by namespace and feature.

    A host must have one of the values of every feature. ``namespaces`` are those of the package's
    variants, the most important first.
    """

    label: str
    properties: Properties
    namespaces: tuple[str, ...] = ()


class _Priorities(msgspec.Struct, frozen=True):
    namespace: tuple[str, ...] = ()


class _Document(msgspec.Struct, frozen=True):
    variants: dict[str, dict[str, dict[str, tuple[str, ...]]]]
    schema: str = msgspec.field(name="$schema", default="")
    priorities: _Priorities = msgspec.field(name="default-priorities", default=_Priorities())


def split_label(filename: str) -> tuple[str, str]:
    """Return the name that the wheel would have without its label, and the label, or empty.

    Without a label, a name has five parts, or six if the third is a build tag, which starts with a
    digit; a Python tag does not.
    """
    parts = filename.removesuffix(".whl").split("-")
    num_others = 6 if len(parts) > 2 and parts[2][:1].isdigit() else 5
    if len(parts) != num_others + 1 or not _LABEL.fullmatch(parts[-1]):
        return filename, ""
    return f"{'-'.join(parts[:-1])}.whl", parts[-1]


def parse_variants(data: bytes) -> Mapping[str, Variant]:
    """Parse the ``variant.json`` of a wheel, or that of an index for all variants of a release.

    Return the variants by label. Raise ``ValueError`` if it is invalid, or if its format has a
    major version that is not known.
    """
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(f"is invalid: {error}") from error
    version = _SCHEMA_VERSION.search(document.schema)
    if version is not None and int(version[1]) > _NEWEST_MAJOR:
        raise ValueError(
            f"has version {version[1]} of the format, but only {_NEWEST_MAJOR} is known"
        )
    if not all(map(_NAME.fullmatch, document.priorities.namespace)):
        raise ValueError("has invalid names of namespaces")
    for properties in document.variants.values():
        for namespace, features in properties.items():
            names = [namespace, *features]
            values = [value for values in features.values() for value in values]
            if not all(map(_NAME.fullmatch, names)) or not all(map(_LABEL.fullmatch, values)):
                raise ValueError("has invalid names of properties")
    return {
        label: Variant(
            label=label,
            properties={} if label == NULL else properties,
            namespaces=document.priorities.namespace,
        )
        for label, properties in document.variants.items()
    }


def parse_variant(data: bytes, label: str) -> Variant:
    """Parse the ``variant.json`` of a wheel, which is the variant ``label``.

    Raise ``ValueError`` if it is invalid, or does not describe that variant.
    """
    try:
        variants = parse_variants(data)
    except ValueError as error:
        raise ValueError(f"its {FILE} {error}") from error
    if label not in variants:
        raise ValueError(f"its {FILE} does not describe the variant {label}")
    return variants[label]


def namespace_order(variants: Iterable[Variant]) -> tuple[str, ...]:
    """Return the namespaces of a release's variants, the most important first: the longest of their
    lists.

    Raise ``ValueError`` if another list is not the beginning of that one.
    """
    lists = sorted({each.namespaces for each in variants}, key=len, reverse=True)
    longest = lists[0] if lists else ()
    for each in lists:
        if longest[: len(each)] != each:
            raise ValueError(
                f"variants of one release order their namespaces differently: {', '.join(longest)}"
                f" and {', '.join(each)}"
            )
    return longest
