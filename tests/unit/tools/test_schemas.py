"""The schemas in ``docs/reference/schemas`` are those of the documents as they are declared."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import jsonschema
import msgspec
import pytest

from potluck.types.document import Count, Document, document_of
from tools.reference.schemas import DOCUMENTS, SCHEMAS, json_schema, schema_text


class Spoon(Document, frozen=True, kw_only=True):
    """A spoon."""

    length: Count = 3
    """How long
    it is."""
    engraving: str | msgspec.UnsetType = msgspec.UNSET


class Drawer(Document, frozen=True, kw_only=True):
    """A drawer."""

    schema: Literal["potluck.drawer/1"] = "potluck.drawer/1"
    spoons: tuple[Spoon, ...]
    best: Spoon | None = msgspec.field(name="the best")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_schemas_are_current(name: str) -> None:
    current = schema_text(DOCUMENTS[name])
    assert (SCHEMAS / f"{name}.json").read_text("utf-8") == current, "run python -m tools.reference"


def test_every_schema_is_that_of_a_document() -> None:
    assert {path.stem for path in SCHEMAS.iterdir()} == {*DOCUMENTS}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_has_the_name_of_its_schema(name: str) -> None:
    schema = json_schema(DOCUMENTS[name])
    jsonschema.Draft202012Validator.check_schema(schema)
    named = schema["$defs"][DOCUMENTS[name].__name__]["properties"].get("schema")
    assert named in ({"enum": [f"potluck.{name}/1"]}, None)
    assert named is None or name != "deploy-request"


def test_a_document_has_all_fields_that_are_set_and_no_others() -> None:
    schema = json_schema(Drawer)
    drawer, spoon = schema["$defs"]["Drawer"], schema["$defs"]["Spoon"]
    assert drawer["required"] == ["schema", "spoons", "the best"]
    assert spoon["required"] == ["length"]
    assert not drawer["additionalProperties"]
    assert spoon["properties"]["length"] == {
        "type": "integer",
        "minimum": 0,
        "description": "How long it is.",
    }
    made = msgspec.to_builtins(Drawer(spoons=(Spoon(),), best=None))
    assert made == {"schema": "potluck.drawer/1", "spoons": ({"length": 3},), "the best": None}


def test_a_document_is_made_of_a_values_attributes() -> None:
    assert document_of(Spoon, Path("x"), engraving="a") == Spoon(length=3, engraving="a")
    assert document_of(Spoon, Spoon(length=5)) == Spoon(length=5)
    with pytest.raises(TypeError, match="spoons"):
        document_of(Drawer, Path("x"), best=None)
