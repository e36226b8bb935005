"""Checks JSON documents by the schemas in ``docs/reference/schemas``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec

SCHEMAS = Path(__file__).parents[2] / "docs" / "reference" / "schemas"


def validate_document(document: Any, name: str | None = None) -> dict[str, Any]:
    """Check a document by the schema ``name``, or else by its own, and return it as read."""
    found: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(document), allow_nan=False))
    own = found["schema"].removeprefix("potluck.").partition("/")[0]
    assert name in (None, own)
    jsonschema.validate(found, json.loads((SCHEMAS / f"{own}.json").read_text("utf-8")))
    return found
