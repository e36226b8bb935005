"""The table of families agrees with the modules that define them."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from importlib import import_module

import pytest

import potluck.models
from potluck.models.family import FAMILY_NAMES, Family, all_families, families_named, family_of


def test_the_table_has_every_family_of_every_module() -> None:
    defined = {
        f"{name}.{constant}"
        for _, name, _ in pkgutil.iter_modules(potluck.models.__path__)
        for constant, value in vars(import_module(f"potluck.models.{name}")).items()
        if isinstance(value, Family)
    }
    assert defined == set(FAMILY_NAMES)


def test_families_are_named_once() -> None:
    families = all_families()
    assert len({family.name for family in families}) == len(families) == len(FAMILY_NAMES)


def test_the_table_has_every_name_of_a_family() -> None:
    for family, names in zip(all_families(), FAMILY_NAMES.values(), strict=True):
        assert names[0] == family.name
        others = {*family.wrappers, *family.aliases, *family.gguf_architectures} - {family.name}
        assert sorted(names[1:]) == sorted(others)


def test_families_are_found_by_any_of_their_names() -> None:
    assert [family.name for family in families_named("mistral3")] == ["mistral", "ministral3"]
    assert [family.name for family in families_named("deepseek2")] == ["deepseek_v3"]
    assert list(families_named("gpt2")) == []
    assert family_of("gemma3_text").name == "gemma3_text"
    with pytest.raises(KeyError):
        family_of("gemma3")


def test_only_the_family_of_a_model_is_imported() -> None:
    script = (
        "import sys\n"
        "from potluck.models.registry import config_from_hugging_face\n"
        "from potluck.models.family import FAMILY_NAMES, families_named\n"
        "list(families_named('qwen3moe'))\n"
        "modules = {location.partition('.')[0] for location in FAMILY_NAMES}\n"
        "print([each for each in modules if f'potluck.models.{each}' in sys.modules])\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert completed.stdout == "['qwen3']\n"
