"""Prints docs/reference/wheel-predictions.md from the results of ``wheel_predictions.py``.

PYTHONPATH=. python benchmarks/wheel_table.py benchmarks/results/wheel_predictions.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename
from wheel_loads import Load
from wheel_trials import Explanation, explanations

_MACHINES = ("x86_64", "aarch64")

_INTRODUCTION = """\
# Wheels, as predicted and as they load

Made by `benchmarks/wheel_table.py` from `benchmarks/results/wheel_predictions.json`
([how it is measured](../../benchmarks/METHODOLOGY.md#wheel-predictions)).

Every shared object of each wheel was opened (`dlopen`, `RTLD_NOW`) by the dynamic linker of real
systems' own packages, those for aarch64 under qemu, each alone and without the wheel's
dependencies; and Potluck was asked before, of the same files and a description of the same system.
A cell says how many of a wheel's shared objects load, and nothing else where all outcomes are as
predicted; where not, how many differ, and which note says why."""


def page(document: Mapping[str, Any], known: Sequence[Explanation]) -> str:
    """The whole page. A difference that nobody has explained is said to be unexplained."""
    notes: dict[str, int] = {}
    rows = [_cells(wheel, document["roots"], known, notes) for wheel in document["wheels"]]
    header = [
        "wheel",
        "tag",
        "least tag",
        "auditwheel",
        *(_root_title(r) for r in document["roots"]),
    ]
    parts = [_INTRODUCTION, _summary(document), _table(header, rows)]
    if notes:
        lines = [f"{number}. {note}" for note, number in notes.items()]
        parts.append("## Differences\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _summary(document: Mapping[str, Any]) -> str:
    loads = [load for wheel in document["wheels"] for _, load in _loads(wheel)]
    right = sum(load.is_as_predicted for load in loads)
    num_loading = sum(not load.real for load in loads)
    num_wheels = len(document["wheels"])
    num_same = sum(wheel["least"] == [wheel["auditwheel"]] for wheel in document["wheels"])
    return (
        f"{num_wheels} wheels on {len(document['roots'])} systems: {right:,} of {len(loads):,} "
        f"outcomes are as predicted; {num_loading:,} load. The least tag is that of `auditwheel "
        f"show` for {num_same} of {num_wheels} wheels."
    )


def _cells(
    wheel: Mapping[str, Any],
    roots: Sequence[Mapping[str, Any]],
    known: Sequence[Explanation],
    notes: dict[str, int],
) -> list[str]:
    name, version, _, tags = parse_wheel_filename(wheel["wheel"])
    platforms = sorted({tag.platform for tag in tags})
    machine = next(each for each in _MACHINES if platforms[0].endswith(each))
    cells = [
        f"{name} {version} {machine}",
        *(", ".join(map(_short, each)) for each in (platforms, wheel["least"])),
        _short(wheel["auditwheel"]),
    ]
    for root in roots:
        loads = [load for name, load in _loads(wheel) if name == root["name"]]
        loading = sum(not load.real for load in loads)
        cell = "all" if loading == len(loads) else f"{loading} of {len(loads)}"
        differing = [load for load in loads if not load.is_as_predicted]
        if differing:
            marks = {_note(wheel["wheel"], root["name"], load, known, notes) for load in differing}
            cell += f"; {len(differing)} differ: note {', '.join(map(str, sorted(marks)))}"
        cells.append(cell)
    return cells


def _note(
    wheel: str, root: str, load: Load, known: Sequence[Explanation], notes: dict[str, int]
) -> int:
    """The number of the note on a difference, which is added where it is new."""
    why = next(
        (each.why for each in known if each.is_of(wheel, root, load.file)),
        f"Unexplained: `{load.file}`; predicted: {load.predicted or 'loads'}; "
        f"real: {load.real or 'loads'}",
    )
    return notes.setdefault(why, len(notes) + 1)


def _loads(wheel: Mapping[str, Any]) -> Iterator[tuple[str, Load]]:
    for root, loads in wheel["results"].items():
        for load in loads:
            yield root, Load(**load)


def _root_title(root: Mapping[str, Any]) -> str:
    major, minor = root["libc_version"]
    return f"{root['name']} (glibc {major}.{minor})"


def _short(tag: str) -> str:
    """``manylinux_2_28_x86_64`` as ``2_28``."""
    return (
        tag.removeprefix("manylinux").lstrip("_").removesuffix("_x86_64").removesuffix("_aarch64")
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    arguments = parser.parse_args()
    document = json.loads(arguments.results.read_text(encoding="utf-8"))
    sys.stdout.write(page(document, explanations()))


if __name__ == "__main__":
    main()
