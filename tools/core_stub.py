"""Write src/potluck/kernels/_core.pyi, the interface of the installed compiled core.

``python -m tools.core_stub && ruff format src/potluck/kernels/_core.pyi`` after a change of a
binding; a test compares the two. Names, arguments, defaults and types are what ``nanobind.stubgen``
reads from the module. Documentation, and types that C++ does not know, are in ``core_stub.toml``.
"""

from __future__ import annotations

import ast
import importlib
import textwrap
import tomllib
from pathlib import Path

from nanobind.stubgen import StubGen

STUB = Path(__file__).resolve().parents[1] / "src/potluck/kernels/_core.pyi"

_ARRAYS = {
    "float32": "F32",
    "float64": "F64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "int8": "I8",
    "int32": "I32",
}

_IMPORTS = """\
import enum
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from potluck.types.engine import Exchange
from potluck.types.program import Op
"""


class _Edit(ast.NodeTransformer):
    """Shortens the names of array types, and adds the table's docstrings and types."""

    def __init__(self, docs: dict[str, str], types: dict[str, str]) -> None:
        self._docs, self._types = dict(docs), dict(types)
        self._inside: list[str] = []

    def check_all_used(self) -> None:
        """Raise ``ValueError`` if the table says something of what the core does not have."""
        if left := [*self._docs, *self._types]:
            raise ValueError(f"core_stub.toml names what the core lacks: {', '.join(left)}")

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if ast.unparse(node.value) == "Annotated":
            array = ast.unparse(node).removeprefix("Annotated[NDArray[numpy.").split("]")[0]
            return ast.Name(_ARRAYS[array])
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:
        self.generic_visit(node)
        node.value = None  # of the build at hand
        doc = self._docs.pop(ast.unparse(node.target), None)
        return [node] if doc is None else [node, ast.Expr(ast.Constant(doc))]

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._documented(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        name = ".".join([*self._inside, node.name])
        edited = self._documented(node)
        arguments = (*node.args.args, *node.args.kwonlyargs)
        for each in arguments:
            if type_text := self._types.pop(f"{name}.{each.arg}", None):
                each.annotation = ast.parse(type_text, mode="eval").body
        if type_text := self._types.pop(f"{name}.return", None):
            node.returns = ast.parse(type_text, mode="eval").body
        node.args.defaults = [_fixed(each) for each in node.args.defaults]
        return edited

    def _documented(self, node: ast.ClassDef | ast.FunctionDef) -> ast.AST:
        self._inside.append(node.name)
        self.generic_visit(node)
        if doc := self._docs.pop(".".join(self._inside), None):
            indent = "    " * len(self._inside)
            text = textwrap.indent(doc, indent).strip()
            if "\n" in doc:
                text += f"\n{indent}"
            rest = [each for each in node.body if not _says_nothing(each)]
            node.body = [ast.Expr(ast.Constant(text)), *rest]
        self._inside.pop()
        return node


def core_stub() -> str:
    """Return the stub of the installed core, unformatted."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    stub = StubGen(importlib.import_module("potluck.kernels._core"), include_docstrings=False)
    stub.put(stub.module)
    tree = ast.parse(stub.get())
    imports = (ast.Import, ast.ImportFrom)
    tree.body = [each for each in tree.body if not isinstance(each, imports)]
    edit = _Edit(table["docs"], table["types"])
    tree = edit.visit(tree)
    edit.check_all_used()
    arrays = "".join(f"{short} = NDArray[np.{name}]\n" for name, short in _ARRAYS.items())
    heading = f'"""{table["heading"]}"""\n\n{_IMPORTS}\n{arrays}\n'
    return heading + ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _fixed(default: ast.expr) -> ast.expr:
    return ast.Tuple([]) if isinstance(default, ast.List) and not default.elts else default


def _says_nothing(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and ast.unparse(statement) == "..."
    )


if __name__ == "__main__":
    STUB.write_text(core_stub(), "utf-8")
