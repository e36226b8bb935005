"""Writes the settings of deployments into the JSON schemas that have them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from potluck.types.deployment import Deploy
from potluck.types.deployment_spec import DeploymentSpec, json_schema, settings_of

SCHEMAS = Path(__file__).parents[2] / "src" / "potluck" / "cli" / "schemas"

_IN_FORCE = frozenset(
    {"context_tokens", "cache_tokens", "num_states", "quantization", "arithmetic"}
)
"""Of these, documents have what is in force."""

_WIDTH = 200


def deploy_schema() -> str:
    """Return the schema of the body of ``POST /cluster/deployments``."""
    return json.dumps(json_schema(Deploy), indent=2, ensure_ascii=False) + "\n"


DOCUMENTS: Mapping[str, tuple[str, ...]] = {
    "deploy.json": (),
    "cluster.json": ("properties", "deployments", "items"),
}
"""The schemas that have a deployment, with the keys that lead to it."""


def deployment_in(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the schema of a deployment in that of the document ``name``."""
    for key in DOCUMENTS[name]:
        document = document[key]
    return document


def with_settings(name: str, kind: type[DeploymentSpec] = DeploymentSpec) -> str:
    """Return the text of a schema with the settings of ``kind`` as they are declared now."""
    document = json.loads((SCHEMAS / name).read_text("utf-8"))
    deployment = deployment_in(document, name)
    schema = json_schema(kind)
    declared = schema["$defs"][kind.__name__]["properties"]
    for setting in settings_of(kind).keys() - _IN_FORCE:
        deployment["properties"][setting] = _inline(declared[setting], schema["$defs"])
    missing = settings_of(kind).keys() - deployment["required"]
    deployment["required"] = [*deployment["required"], *sorted(missing)]
    return _written(document, "") + "\n"


def _inline(value: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a schema without references, titles and defaults."""
    if isinstance(value, list):
        return [_inline(each, definitions) for each in value]
    if not isinstance(value, dict):
        return value
    referred = value.get("$ref")
    if referred is not None:
        value = {**definitions[referred.rpartition("/")[2]], **value}
    left_out = ("$ref", "title", "default")
    return {key: _inline(each, definitions) for key, each in value.items() if key not in left_out}


def _written(value: Any, indent: str) -> str:
    """Return JSON in which what fits on a line is on one, as the schemas are written."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict) or not value or len(indent) + len(line) <= _WIDTH:
        return line
    inner = indent + "  "
    entries = [f"{inner}{json.dumps(key)}: {_written(each, inner)}" for key, each in value.items()]
    return "{\n" + ",\n".join(entries) + f"\n{indent}}}"
