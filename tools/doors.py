"""A contract for import-linter: packages are entered through the modules that they name.

A package names its open modules in the ``__all__`` of its ``__init__``, beside the names that it
defines itself. Code outside the package imports the package or one of these, and nothing else of
it. A package without ``__all__`` is open. The rule holds at every level: ``probe.doctor.case`` is
open to other packages if ``probe`` names ``doctor``, and ``doctor`` names ``case`` or has no
``__all__``.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import grimp
from importlinter import Contract, ContractCheck, fields, output

SOURCE = Path(__file__).parents[1] / "src"


class Doors(Contract):
    """The contract of the type ``doors``.

    The packages directly within ``containers`` must have an ``__all__``, except ``open_packages``.
    """

    type_name = "doors"

    containers = fields.ListField(subfield=fields.StringField())
    open_packages = fields.ListField(subfield=fields.StringField())

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        """Return whether all imports keep to the doors, and all doors are used."""
        containers: Any = self.containers
        open_packages: Any = self.open_packages
        packages = {module for module in graph.modules if graph.find_children(module)}
        named = {each: names for each in packages if (names := _named_by(each)) is not None}
        closed = {each for each in packages if each.rpartition(".")[0] in containers}
        closed -= {*open_packages}
        lacking = [f"{each} has no __all__" for each in sorted(closed - named.keys())]
        faults = [*lacking, *find_faults(graph, named)]
        return ContractCheck(kept=not faults, metadata={"faults": faults})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print one line for each fault."""
        for fault in check.metadata["faults"]:
            output.print_error(fault, bold=False)


def find_faults(graph: grimp.ImportGraph, named: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Yield in words the imports that enter a package elsewhere, and the doors that nobody uses.

    ``named`` has the ``__all__`` of each package that has one.
    """
    unused = {f"{package}.{name}" for package, names in named.items() for name in names}
    unused &= graph.modules
    for importer in sorted(graph.modules):
        for imported in sorted(graph.find_modules_directly_imported_by(importer)):
            for package, name in _entered(importer, imported):
                unused.discard(f"{package}.{name}")
                if name not in named.get(package, {name}):
                    yield f"{importer} imports {imported}, but {package} does not name {name}"
    for each in sorted(unused):
        yield f"{each} is named by its package, but no other package imports it"


def _entered(importer: str, imported: str) -> Iterator[tuple[str, str]]:
    """Yield each package that an import enters, and the name by which it does."""
    path = imported.split(".")
    for depth in range(2, len(path)):
        package = ".".join(path[:depth])
        if not f"{importer}.".startswith(f"{package}."):
            yield package, path[depth]


def _named_by(package: str) -> frozenset[str] | None:
    """Return the names in the ``__all__`` of a package; None if it has none."""
    path = SOURCE.joinpath(*package.split("."), "__init__.py")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(node.value))
    return None
