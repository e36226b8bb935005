"""Prints docs/reference/wheel-predictions.md from the results of ``wheel_predictions.py``.

PYTHONPATH=. python benchmarks/wheel_table.py benchmarks/results/wheel_predictions.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from packaging.tags import Tag
from packaging.utils import parse_wheel_filename
from wheel_loads import Load
from wheel_trials import Explanation, explanations, tag_explanations

_MACHINES = ("x86_64", "aarch64")

_INTRODUCTION = """\
# Wheel predictions and actual loads

Made by `benchmarks/wheel_table.py` from `benchmarks/results/wheel_predictions.json`
([methodology](../../benchmarks/METHODOLOGY.md#wheel-predictions)).

Every shared object of each wheel was opened (`dlopen`, `RTLD_NOW`) with the dynamic linkers of real
systems, those for aarch64 under qemu, each file by itself and without the wheel's dependencies. The
results are compared with Potluck's predictions for the same files and a description of the same
system. A cell shows how many of a wheel's shared objects load; if some outcomes differ from the
predictions, it also shows how many, and which note explains them. The last column is for systems of
the other architecture. Files that are linked but whose initializers then kill the process count as
loading: matplotlib's `ft2font` calls Python, which is not started here, and onnxruntime for aarch64
does not support the emulated CPU."""


def page(
    document: Mapping[str, Any], known: Sequence[Explanation], known_tags: Mapping[str, str]
) -> str:
    """Return the page. A difference without a known explanation is reported as unexplained."""
    notes: dict[str, int] = {}
    parts = [_INTRODUCTION, _summary(document)]
    for machine in _MACHINES:
        own = [root for root in document["roots"] if root["machine"] == machine]
        titles = [*map(_root_title, own), "another machine's"]
        rows = [
            _cells(wheel, own, known, known_tags, notes)
            for wheel in document["wheels"]
            if machine in wheel["wheel"]
        ]
        header = ["wheel", "tag", "least tag", "auditwheel", *titles]
        parts.append(f"## {machine}\n\n{_table(header, rows)}")
    if notes:
        lines = [f"{number}. {note}" for note, number in notes.items()]
        parts.append("## Differences\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _summary(document: Mapping[str, Any]) -> str:
    loads = [load for wheel in document["wheels"] for _, load in _loads(wheel)]
    right = sum(load.is_as_predicted for load in loads)
    num_loading = sum(load.is_linked for load in loads)
    num_wheels = len(document["wheels"])
    num_same = sum(wheel["least"] == [wheel["auditwheel"]] for wheel in document["wheels"])
    return (
        f"{num_wheels} wheels on {len(document['roots'])} systems: {right:,} of {len(loads):,} "
        f"outcomes are as predicted; {num_loading:,} load. The least tag is that of `auditwheel "
        f"show` for {num_same} of {num_wheels} wheels."
    )


def _cells(
    wheel: Mapping[str, Any],
    own_roots: Sequence[Mapping[str, Any]],
    known: Sequence[Explanation],
    known_tags: Mapping[str, str],
    notes: dict[str, int],
) -> list[str]:
    """Return a row: the wheel, its tags, a cell for each root of its machine, one for others."""
    name, version, _, tags = parse_wheel_filename(wheel["wheel"])
    names = [root["name"] for root in own_roots]
    groups = [*([each] for each in names), [each for each in wheel["results"] if each not in names]]
    auditwheel = _short(wheel["auditwheel"])
    if [wheel["auditwheel"]] != wheel["least"]:
        why = (why for each, why in known_tags.items() if fnmatchcase(wheel["wheel"], each))
        note = next(why, f"Unexplained: the least tag of `{wheel['wheel']}`")
        auditwheel += f": note {notes.setdefault(note, len(notes) + 1)}"
    return [
        f"{name} {version}",
        *(", ".join(sorted(set(map(_short, each)))) for each in (_platforms(tags), wheel["least"])),
        auditwheel,
        *(_cell(wheel, group, known, notes) for group in groups),
    ]


def _platforms(tags: Iterable[Tag]) -> list[str]:
    return [tag.platform for tag in tags]


def _cell(
    wheel: Mapping[str, Any],
    roots: Sequence[str],
    known: Sequence[Explanation],
    notes: dict[str, int],
) -> str:
    """Return how many files load on some roots, and notes on wrong predictions."""
    loads = [(root, load) for root, load in _loads(wheel) if root in roots]
    loading = sum(load.is_linked for _, load in loads)
    cell = {len(loads): "all", 0: "none"}.get(loading, f"{loading} of {len(loads)}")
    differing = [(root, load) for root, load in loads if not load.is_as_predicted]
    if not differing:
        return cell
    numbers = {_note(wheel["wheel"], root, load, known, notes) for root, load in differing}
    return f"{cell}; {len(differing)} differ: note {', '.join(map(str, sorted(numbers)))}"


def _note(
    wheel: str, root: str, load: Load, known: Sequence[Explanation], notes: dict[str, int]
) -> int:
    """Return the number of the note on a difference; add the note if it is new."""
    why = next(
        (each.why for each in known if each.is_of(wheel, root, load.file)),
        f"Unexplained: `{load.file}`; predicted: {load.predicted or 'loads'}; "
        f"real: {load.real or 'loads'}",
    )
    return notes.setdefault(why, len(notes) + 1)


def _loads(wheel: Mapping[str, Any]) -> Iterator[tuple[str, Load]]:
    for root, outcomes in wheel["results"].items():
        for outcome in outcomes:
            for number in outcome["files"]:
                file = wheel["files"][number]
                yield root, Load(file=file, predicted=outcome["predicted"], real=outcome["real"])


def _root_title(root: Mapping[str, Any]) -> str:
    major, minor = root["libc_version"]
    return f"{root['name']} (glibc {major}.{minor})"


def _short(tag: str) -> str:
    """Shorten ``manylinux_2_28_x86_64`` to ``2_28``."""
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
    sys.stdout.write(page(document, explanations(), tag_explanations()))


if __name__ == "__main__":
    main()
