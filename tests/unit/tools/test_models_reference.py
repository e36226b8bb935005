"""The page of models is what its tool makes of the record and of the published models."""

from __future__ import annotations

import json

from potluck.models.family import all_families
from tools.models_reference import DIRECTORY, page


def test_the_page_is_what_the_tool_makes() -> None:
    shown, published = (
        json.loads((DIRECTORY / name).read_text(encoding="utf-8"))
        for name in ("models.json", "published-models.json")
    )
    assert (DIRECTORY / "models.md").read_text(encoding="utf-8") == page(shown, published)


def test_every_family_is_shown_and_has_published_models() -> None:
    shown, published = (
        json.loads((DIRECTORY / name).read_text(encoding="utf-8"))
        for name in ("models.json", "published-models.json")
    )
    names = {family.name for family in all_families()}
    assert set(published) == names
    assert set(shown) == names
