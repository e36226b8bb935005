"""Tables in TOML that are shipped with Potluck."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import TypeVar

import msgspec

Table = TypeVar("Table")


def read_toml(package: str, name: str, form: type[Table]) -> Table:
    """Return the contents of a file of ``package``."""
    return parse_toml(resources.files(package).joinpath(name).read_text("utf-8"), form)


def read_rows(package: str, name: str, key: str, rows: type[Table]) -> Table:
    """Return the value of ``key``, the only one in a file of ``package``.

    Raises ``ValueError`` for another key.
    """
    document = read_toml(package, name, dict[str, object])
    if document.keys() != {key}:
        raise ValueError(f"{name} has the keys {', '.join(document)}, not only {key}")
    return msgspec.convert(document[key], rows)


def parse_toml(text: str, form: type[Table]) -> Table:
    """Parse TOML. Raise ``ValueError``, which says what is wrong and where."""
    return msgspec.convert(tomllib.loads(text), form)
