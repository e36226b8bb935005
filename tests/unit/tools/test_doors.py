"""Packages are entered through the modules that they name."""

from __future__ import annotations

from pathlib import Path

import grimp
import pytest

from tools import doors
from tools.doors import Doors, find_faults

NAMED = {"house.kitchen": {"oven", "cook"}, "house.kitchen.oven": {"door"}}


def graph_of(*imports: tuple[str, str]) -> grimp.ImportGraph:
    """Return a house with these imports."""
    graph = grimp.ImportGraph()
    for module in (
        "house",
        "house.kitchen",
        "house.kitchen.oven",
        "house.kitchen.oven.door",
        "house.kitchen.oven.flame",
        "house.kitchen.pantry",
        "house.hall",
    ):
        graph.add_module(module)
    for importer, imported in imports:
        graph.add_import(importer=importer, imported=imported)
    return graph


USED = (
    ("house.hall", "house.kitchen.oven.door"),
    ("house.kitchen.pantry", "house.kitchen.oven.door"),
)


def test_imports_through_the_doors_are_allowed() -> None:
    inside = ("house.kitchen.oven.door", "house.kitchen.pantry")
    whole = ("house.hall", "house.kitchen")
    assert not [*find_faults(graph_of(*USED, inside, whole), NAMED)]


@pytest.mark.parametrize(
    ("imported", "package", "name"),
    [
        ("house.kitchen.pantry", "house.kitchen", "pantry"),
        ("house.kitchen.oven.flame", "house.kitchen.oven", "flame"),
    ],
)
def test_other_imports_are_faults(imported: str, package: str, name: str) -> None:
    faults = [*find_faults(graph_of(*USED, ("house.hall", imported)), NAMED)]
    assert faults == [f"house.hall imports {imported}, but {package} does not name {name}"]


def test_a_door_that_nobody_uses_is_a_fault() -> None:
    faults = [*find_faults(graph_of(USED[1]), NAMED)]
    assert faults == ["house.kitchen.oven is named by its package, but no other package imports it"]


def test_packages_must_say_what_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "SOURCE", tmp_path)
    for package in ("house", "house/kitchen", "house/kitchen/oven"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()

    def contract(*open_packages: str) -> Doors:
        options = {"containers": ["house"], "open_packages": [*open_packages]}
        return Doors("doors", {}, {"name": "doors", **options})

    failed = contract().check(graph_of(*USED), verbose=False)
    assert failed.metadata["faults"] == ["house.kitchen has no __all__"]
    assert contract("house.kitchen").check(graph_of(*USED), verbose=False).kept
