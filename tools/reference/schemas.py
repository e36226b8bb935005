"""The JSON schemas of documents: ``docs/reference/schemas``."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from potluck.cli.bench_report import BenchDocument
from potluck.cli.cache import CacheDocument
from potluck.cli.dashboard import DashboardDocument
from potluck.cli.doctor import DoctorDocument
from potluck.cli.fetch import FetchDocument
from potluck.cli.probe import ProbeDocument
from potluck.cli.report import RunDocument
from potluck.cli.service import ServiceDocument
from potluck.cli.wheel_document import WheelDocument
from potluck.cli.wheel_plan_output import WheelPlanDocument
from potluck.local.check_document import CheckDocument
from potluck.portability.hosts.document import HostDocument
from potluck.types.deployment import Deploy
from potluck.types.deployment_spec import DeploymentSpec, settings_of
from potluck.types.document import Document
from potluck.types.documents.cluster import ClusterDocument, DeployDocument
from potluck.types.documents.nodes import InvitationsDocument, InviteDocument, NodesDocument
from potluck.types.documents.plan import PlanDocument, RebalanceDocument

SCHEMAS = Path(__file__).parents[2] / "docs" / "reference" / "schemas"

DOCUMENTS: Mapping[str, type[msgspec.Struct]] = {
    "bench": BenchDocument,
    "cache": CacheDocument,
    "check": CheckDocument,
    "cluster": ClusterDocument,
    "dashboard": DashboardDocument,
    "deploy": DeployDocument,
    "deploy-request": Deploy,
    "doctor": DoctorDocument,
    "fetch": FetchDocument,
    "host": HostDocument,
    "invitations": InvitationsDocument,
    "invite": InviteDocument,
    "nodes": NodesDocument,
    "plan": PlanDocument,
    "probe": ProbeDocument,
    "rebalance": RebalanceDocument,
    "run": RunDocument,
    "service": ServiceDocument,
    "wheel": WheelDocument,
    "wheel-plan": WheelPlanDocument,
}
"""Documents by the names of their schemas: ``NAME`` is also the name in ``potluck.NAME/1``."""

_WIDTH = 100


def schema_text(kind: type[msgspec.Struct]) -> str:
    """Return the text of the schema of ``kind``."""
    return _written(json_schema(kind), "") + "\n"


def json_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON schema of ``kind``, with descriptions of the fields.

    A ``Document`` has all of its fields and no others; in other objects, those with default values
    may be missing.
    """
    schema = msgspec.json.schema(kind)
    is_whole = issubclass(kind, Document)
    for cls in _classes(msgspec.inspect.type_info(kind)):
        definition = schema["$defs"][cls.__name__]
        properties: dict[str, dict[str, Any]] = definition["properties"]
        names = _encoded_names(cls)
        for name, text in _field_docs(cls).items():
            properties[names[name]]["description"] = text
        if issubclass(cls, DeploymentSpec):
            _describe_settings(cls, properties)
        if is_whole:
            optional = {names[each] for each in _unset(cls)}
            definition["required"] = [each for each in properties if each not in optional]
            definition["additionalProperties"] = False
            for each in properties.values():
                each.pop("default", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _describe_settings(cls: type[DeploymentSpec], properties: Mapping[str, dict[str, Any]]) -> None:
    """Add the help and the ranges of the settings, except those of fields that replace them."""
    for name, setting in settings_of(cls).items():
        properties[name].setdefault("description", setting.help)
        if setting.numbers is not None:
            properties[name] |= {"minimum": setting.numbers.least, "maximum": setting.numbers.most}


def _classes(info: msgspec.inspect.Type) -> Iterator[type]:
    """Yield the structs and dataclasses that a type consists of, each once."""
    seen: set[type] = set()
    waiting: list[Any] = [info]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list | tuple):
            waiting.extend(each)
        elif isinstance(each, msgspec.inspect.Field):
            waiting.append(each.type)
        elif isinstance(each, msgspec.inspect.Type):
            cls = getattr(each, "cls", None)
            if isinstance(each, msgspec.inspect.StructType | msgspec.inspect.DataclassType):
                if cls in seen:
                    continue
                seen.add(each.cls)
                yield each.cls
            waiting.extend(getattr(each, name) for name in each.__struct_fields__ if name != "cls")


def _encoded_names(cls: type) -> Mapping[str, str]:
    """Return what the fields of ``cls`` are called in JSON."""
    if issubclass(cls, msgspec.Struct):
        return dict(zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True))
    return {name: name for name in cls.__dataclass_fields__}  # type: ignore[attr-defined]


def _unset(cls: type) -> Iterator[str]:
    """Yield the fields that a document need not have."""
    if issubclass(cls, msgspec.Struct):
        for field in msgspec.structs.fields(cls):
            if field.default is msgspec.UNSET:
                yield field.name


def _field_docs(cls: type) -> dict[str, str]:
    """Return the strings below the fields of ``cls`` and of its bases, on one line each."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not base.__module__.startswith(("potluck", "tests", "test_", "support")):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        field = ""
        for node in body.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                field = node.target.id
                found.pop(field, None)
            elif field and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                found[field] = " ".join(str(node.value.value).split())
                field = ""
            else:
                field = ""
    return found


def _written(value: Any, indent: str) -> str:
    """Return JSON in which a value that fits on a line is on one."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value or len(indent) + len(line) <= _WIDTH:
        return line
    inner = indent + "  "
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + _written(each, inner) for each in value) + f"\n{indent}]"
    entries = [f"{inner}{json.dumps(key)}: {_written(each, inner)}" for key, each in value.items()]
    return "{\n" + ",\n".join(entries) + f"\n{indent}}}"
