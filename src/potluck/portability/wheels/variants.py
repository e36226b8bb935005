"""Variants of wheels: their labels in file names, and their properties (PEP 825, a draft)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

NULL = "null"
"""The label of the variant without properties, which every host can use."""

FILE = "variant.json"

_LABEL = re.compile(r"[0-9a-z_.]+")
_NAME = re.compile(r"[0-9a-z_]+")

_Properties = Mapping[str, Mapping[str, tuple[str, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A variant: ``properties`` has the values of features by namespace and feature.

    A host must have one of the values of every feature.
    """

    label: str
    properties: _Properties


class _Document(msgspec.Struct, frozen=True):
    variants: dict[str, dict[str, dict[str, tuple[str, ...]]]]


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


def parse_variant(data: bytes, label: str) -> Variant:
    """Parse the ``variant.json`` of a wheel, or that of an index for all variants of a release.

    Raise ``ValueError`` if it is invalid, or does not describe the variant ``label``.
    """
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(f"its {FILE} is invalid: {error}") from error
    properties = document.variants.get(label)
    if properties is None:
        raise ValueError(f"its {FILE} does not describe the variant {label}")
    for namespace, features in properties.items():
        names = [namespace, *features]
        values = [value for values in features.values() for value in values]
        if not all(map(_NAME.fullmatch, names)) or not all(map(_LABEL.fullmatch, values)):
            raise ValueError(f"its {FILE} has invalid names of properties")
    return Variant(label=label, properties=properties)
