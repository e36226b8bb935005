"""Measures the size of the code, and fails where it has grown without a reason.

    python -m tools.size_budget                  compare with tools/size_budget.toml (``make lint``)
    python -m tools.size_budget --write [REASON] write the sizes as they are; growth needs a reason

A package may grow by 2 % before its row in the table must say why. If it has shrunk by as much, its
row must be written, too, so that the budget follows the code down. The row ``structure`` is about
the whole of ``src``, and each change of it must be written.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".toml")

GROWTH = 0.02
LEAST: Mapping[str, int] = {"lines": 20, "files": 0, "names": 2}
"""Changes that never count, because 2 % of a small package is less than a bug fix."""

SUFFIXES = frozenset({".py", ".js", ".css", ".html", ".h", ".cc", ".sh"})
BESIDE = ("benchmarks", "cpp", "tests", "tools")
"""Folders beside ``src``, measured so that it shows if code has only moved."""
SPLIT = ("cluster",)
"""Packages whose packages have rows of their own."""
STRUCTURE = "structure"
SMALL_LINES = 80
ONE_PER_MODULE = ("cli", "models", "probe.children")
"""Packages with a module for each command, family or child process, however small it is."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_STRUCT_BASES = frozenset({"Struct", "NamedTuple"})

Counts = Mapping[str, int]
"""The lines, files and public names of a package; or, of the whole structure, the modules in the
longest chain of imports, the small modules with a single importer, the methods of the largest
class, and the fields of the largest struct.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table. ``reason`` says why the package had grown when the row was written."""

    counts: Counts
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change that must be written to the table, in words."""

    text: str
    is_growth: bool


def package_sizes(root: Path) -> dict[str, Counts]:
    """Return the sizes of the packages in ``src/potluck``, and of the folders beside ``src``."""
    source = root / "src" / "potluck"
    sizes: dict[str, Counts] = {}
    for path in _sources(source):
        folders = path.relative_to(source).parts[:-1]
        depth = 2 if folders[:1] and folders[0] in SPLIT else 1
        name = ".".join(("potluck", *folders[:depth]))
        sizes[name] = _sum(sizes.get(name, {}), _size(path))
    for folder in BESIDE:
        for path in _sources(root / folder):
            sizes[folder] = _sum(sizes.get(folder, {}), _size(path))
    return dict(sorted(sizes.items()))


def structure(source: Path) -> tuple[Counts, str]:
    """Return the counts of the structure of an importable package, with its largest in words."""
    methods: dict[str, int] = {}
    fields: dict[str, int] = {}
    for path in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef):
                name = f"{path.relative_to(source)}:{node.name}"
                functions = [each for each in node.body if isinstance(each, _FUNCTIONS)]
                methods[name] = len({each.name for each in functions})
                if _is_struct(node):
                    fields[name] = sum(isinstance(each, ast.AnnAssign) for each in node.body)
    largest_class, largest_struct = (max(each, key=each.__getitem__) for each in (methods, fields))
    chain = _longest_chain(source.name)
    small = _small_modules(source)
    counts = {
        "import_chain": chain,
        "small_modules": len(small),
        "class_methods": methods[largest_class],
        "struct_fields": fields[largest_struct],
    }
    return counts, (
        f"the longest chain of imports has {chain} modules, the largest class "
        f"{methods[largest_class]} methods ({largest_class}), the largest struct "
        f"{fields[largest_struct]} fields ({largest_struct}); {len(small)} modules under "
        f"{SMALL_LINES} lines have a single importer ({', '.join(small)})"
    )


def changes(now: Mapping[str, Counts], table: Mapping[str, Row]) -> dict[str, Change]:
    """Return the changes that must be written, by row."""
    found = {}
    for name in sorted({*now, *table}):
        if name not in table:
            found[name] = Change(text=f"{name} is new", is_growth=True)
            continue
        if name not in now:
            found[name] = Change(text=f"{name} is gone", is_growth=False)
            continue
        after = now[name]
        before = {what: table[name].counts.get(what, 0) for what in after}
        more = {what: after[what] - before[what] for what in after}
        grown = [*filter(None, (_excess(what, more[what], before[what]) for what in after))]
        shrunk = [*filter(None, (_excess(what, -more[what], before[what]) for what in after))]
        if grown:
            found[name] = Change(text=f"{name} has grown: {', '.join(grown)}", is_growth=True)
        elif shrunk:
            found[name] = Change(text=f"{name} has shrunk: {', '.join(shrunk)}", is_growth=False)
    return found


def read_table(path: Path) -> dict[str, Row]:
    """Read the table; without the file, it is empty."""
    if not path.exists():
        return {}
    rows = tomllib.loads(path.read_text("utf-8"))
    return {
        name: Row(
            counts={what: count for what, count in row.items() if what != "reason"},
            reason=row.get("reason", ""),
        )
        for name, row in rows.items()
    }


def write_table(path: Path, table: Mapping[str, Row]) -> None:
    """Write the table."""
    lines = ["# The sizes of the code when a row was last written: see size_budget.py."]
    for name, row in sorted(table.items()):
        cells = [f"{what} = {count}" for what, count in row.counts.items()]
        if row.reason:
            cells.append(f"reason = {json.dumps(row.reason, ensure_ascii=False)}")
        lines.append(f'"{name}" = {{ {", ".join(cells)} }}')
    path.write_text("\n".join(lines) + "\n", "utf-8")


def updated(
    now: Mapping[str, Counts],
    table: Mapping[str, Row],
    found: Mapping[str, Change],
    reason: str,
) -> dict[str, Row]:
    """Return the table with the changes that were ``found``."""
    return {
        name: Row(counts=counts, reason=reason if found[name].is_growth else "")
        if name in found
        else table[name]
        for name, counts in now.items()
    }


def main() -> int:
    """Compare or write the table. Return 1 if the table must be written, or needs a reason."""
    parser = argparse.ArgumentParser(description="Compare the size of the code with its budget.")
    parser.add_argument("--write", nargs="?", const="", metavar="REASON")
    reason = parser.parse_args().write
    sizes = package_sizes(ROOT)
    table = read_table(TABLE)
    whole, largest = structure(ROOT / "src" / "potluck")
    print(*_report(sizes, table), largest, sep="\n", flush=True)
    now = {**sizes, STRUCTURE: whole}
    found = changes(now, table)
    has_grown = any(change.is_growth for change in found.values())
    if reason is not None and (reason or not has_grown):
        write_table(TABLE, updated(now, table, found, reason))
        return 0
    for change in found.values():
        print(change.text, file=sys.stderr)
    if found:
        print(
            "merge or delete something, or write the sizes as they are, with the reason for what "
            "has grown:\n  .venv/bin/python -m tools.size_budget --write 'REASON'",
            file=sys.stderr,
        )
    return 1 if found else 0


def _sources(folder: Path) -> Iterable[Path]:
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in SUFFIXES and "node_modules" not in path.parts
    )


def _size(path: Path) -> Counts:
    content = path.read_bytes()
    names = _public_names(ast.parse(content)) if path.suffix == ".py" else 0
    return {"lines": content.count(b"\n"), "files": 1, "names": names}


def _sum(one: Counts, other: Counts) -> Counts:
    return {what: one.get(what, 0) + other[what] for what in other}


def _public_names(module: ast.Module) -> int:
    """Return the number of names without an underscore that a module defines."""
    return sum(
        not name.startswith("_") for statement in module.body for name in _defined(statement)
    )


def _defined(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.Assign(targets=targets):
            for target in targets:
                yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _is_struct(node: ast.ClassDef) -> bool:
    """Return whether a class is a dataclass or derives directly from a struct of msgspec.

    The bodies of HTTP requests and JSON documents, which derive from structs of Potluck's own, have
    the fields of others' APIs, or of several structs.
    """
    bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    decorators = {ast.unparse(each).partition("(")[0] for each in node.decorator_list}
    return bool(bases & _STRUCT_BASES) or "dataclass" in decorators


def _longest_chain(package: str) -> int:
    """Return the number of modules in the longest chain of imports."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)

    @cache
    def height(module: str) -> int:
        imported = graph.find_modules_directly_imported_by(module)
        return 1 + max(map(height, imported), default=0)

    return max(map(height, graph.modules))


def _small_modules(source: Path) -> list[str]:
    """Return the modules that could be part of the only module that imports them."""
    graph = grimp.build_graph(source.name, cache_dir=None)
    found = []
    for module in sorted(graph.modules - {source.name}):
        name = module.removeprefix(f"{source.name}.")
        path = source.joinpath(*name.split(".")).with_suffix(".py")
        if not path.exists() or path.name.startswith("__") or name.startswith(ONE_PER_MODULE):
            continue
        importers = graph.find_modules_that_directly_import(module)
        if len(importers) == 1 and path.read_bytes().count(b"\n") < SMALL_LINES:
            found.append(name)
    return found


def _excess(what: str, more: int, before: int) -> str:
    """Return in words a change that must be written to the table; empty for a smaller one."""
    allowed = max(LEAST[what], before * GROWTH) if what in LEAST else 0
    if more <= allowed:
        return ""
    return f"{what} by {more}" + (f" ({more / before:.1%})" if before else "")


def _report(sizes: Mapping[str, Counts], table: Mapping[str, Row]) -> Iterator[str]:
    """Yield the lines of a table of all packages, with what differs from the budget."""
    yield f"{'package':26}" + "".join(f"{what:>18}" for what in LEAST)
    whole: Counts = {}
    for name, counts in sizes.items():
        whole = whole if name in BESIDE else _sum(whole, counts)
        yield _line(name, counts, table.get(name))
    yield _line("all of src", whole, None)


def _line(name: str, counts: Counts, budget: Row | None) -> str:
    cells = []
    for what, count in counts.items():
        change = 0 if budget is None else count - budget.counts[what]
        cells.append(f"{f'{count:,}' + (f' ({change:+,})' if change else ''):>18}")
    return f"{name:26}{''.join(cells)}"


if __name__ == "__main__":
    sys.exit(main())
