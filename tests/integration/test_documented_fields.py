"""Every field that the HTTP API accepts is in ``docs/reference/http-api.md``, and no other."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

import pytest

from potluck import api
from potluck.api import dialects
from potluck.api.bodies import StrictObject
from potluck.api.ignored_fields import InertFields

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "http-api.md"

_OPENAI = "potluck.api.dialects.openai"
_PLACES = {
    f"{_OPENAI}.bodies": ("Chat completions and completions",),
    f"{_OPENAI}.ignored_fields": ("Chat completions and completions",),
    f"{_OPENAI}.responses.bodies": ("Responses",),
    f"{_OPENAI}.vector_bodies": ("Embeddings", "Reranking"),
    f"{_OPENAI}.token_bodies": ("Tokens",),
    "potluck.api.dialects.anthropic.bodies": ("Anthropic's Messages",),
    "potluck.api.dialects.anthropic.ignored_fields": ("Anthropic's Messages",),
    "potluck.api.dialects.ollama.bodies": ("Ollama's API",),
    "potluck.api.dialects.ollama.ignored_fields": ("Ollama's API",),
}
"""Which sections document the fields of a module. A new module with bodies needs a row."""


def _modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(dialects.__path__, f"{dialects.__name__}."):
        yield importlib.import_module(found.name)


def _fields(module: ModuleType) -> dict[str, str]:
    """The names that a module's bodies and tables accept, with where each was found."""
    fields: dict[str, str] = {}
    for name, value in vars(module).items():
        if isinstance(value, InertFields):
            fields |= dict.fromkeys((*value.harmless, *value.neutral), name)
        elif _is_body(value) and value.__module__ == module.__name__:
            fields |= dict.fromkeys(value.__struct_fields__, name)
    return fields


def _is_body(value: object) -> TypeGuard[type[StrictObject]]:
    return isinstance(value, type) and issubclass(value, StrictObject)


MODULES = {module.__name__: fields for module in _modules() if (fields := _fields(module))}


def _sections() -> dict[str, str]:
    """The text under each heading of the second or third level, with that of those below it."""
    text = DOCUMENT.read_text()
    found: dict[str, str] = {}
    for match in re.finditer(r"^(##+) (.+)$", text, re.MULTILINE):
        level = len(match[1])
        end = re.compile(rf"^#{{1,{level}}} ", re.MULTILINE).search(text, match.end())
        found[match[2]] = text[match.end() : end.start() if end else len(text)]
    return found


SECTIONS = _sections()


def _code(text: str) -> set[str]:
    """All words of all code in ``text``, and dotted names by their parts as well."""
    return {
        word
        for code in re.findall(r"`([^`\n]+)`", text)
        for name in re.findall(r"[\w.]+", code)
        for word in (name, *name.split("."))
    }


def test_every_module_with_bodies_has_its_place_in_the_document() -> None:
    where_imported = {name for name in MODULES if not name.endswith(("ignored_fields", "bodies"))}
    assert set(MODULES) - where_imported <= set(_PLACES)
    for name in where_imported:  # tables used where they are not made
        assert set(MODULES[name]) <= {each for known in _PLACES for each in MODULES.get(known, ())}


@pytest.mark.parametrize(
    ("module", "field"),
    [(name, field) for name in MODULES if name in _PLACES for field in MODULES[name]],
)
def test_every_field_is_documented(module: str, field: str) -> None:
    text = "".join(SECTIONS[section] for section in _PLACES[module])
    assert field in _code(text), f"{MODULES[module][field]} has {field}: document it"


@pytest.mark.parametrize(
    "section", sorted({each for places in _PLACES.values() for each in places})
)
def test_tables_of_fields_name_no_others(section: str) -> None:
    known = {"stream_options"} | {  # which some bodies take apart before they are validated
        field
        for module, places in _PLACES.items()
        if section in places
        for field in MODULES.get(module, ())
    }
    for table in re.findall(
        r"^\| (?:field|fields)\b.*\n\|[-|]+\n((?:\|.*\n)+)", SECTIONS.get(section, ""), re.M
    ):
        for row in table.splitlines():
            for code in re.findall(r"`(\w[^`]*)`", row.split("|")[1]):
                assert set(code.split(".")) <= known, f"{section}: there is no {code}"


def test_every_address_is_documented() -> None:
    paths = {
        path
        for file in Path(api.__path__[0]).rglob("*.py")
        for path in re.findall(r'(?:path=|_PATH = )f?"(/[^"{]*)', file.read_text())
    }
    assert len(paths) > 20
    overview = DOCUMENT.read_text().partition("## ")[0]
    missing = {path for path in paths if path.removesuffix("/") not in overview}
    assert not missing
