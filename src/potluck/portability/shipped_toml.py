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


def parse_toml(text: str, form: type[Table]) -> Table:
    """Parse TOML. Raise ``ValueError``, which says what is wrong and where."""
    return msgspec.convert(tomllib.loads(text), form)
