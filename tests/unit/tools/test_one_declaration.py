"""A setting of deployments that is declared once is an option, a key, a field and documented."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from potluck.cli import settings as settings_module
from potluck.cli.settings import configured, read_settings, settings_struct
from potluck.cli.spec_options import spec_params, takes_settings
from potluck.errors import ParameterError, UsageError
from potluck.types.deployment_spec import (
    DeploymentSpec,
    Setting,
    require_in_range,
)
from potluck.types.documents.base import Document
from potluck.types.ranges import NumberRange
from tools.reference.schemas import json_schema
from tools.reference.settings import rows


class Mood(enum.Enum):
    """For a setting of its own."""

    CALM = "calm"
    BOLD = "bold"


class WithTwoMore(DeploymentSpec, frozen=True, kw_only=True):
    """With two settings more."""

    patience: Annotated[
        float,
        Setting(
            option="--patience",
            metavar="N",
            help="How long to smile.",
            key="patience",
            meaning="how long to smile",
            numbers=NumberRange(least=0, most=9, words="a number from 0 to 9"),
        ),
    ] = 2.0
    mood: Annotated[
        Mood, Setting(option="--mood", help="The mood.", key="mood", meaning="the mood")
    ] = Mood.CALM


class Shown(WithTwoMore, Document, frozen=True, kw_only=True):
    """As documents show deployments."""


@pytest.fixture
def with_two_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_module, "Settings", settings_struct(WithTwoMore))


def given_to(*arguments: str) -> Mapping[str, Any]:
    """What a command gets that takes the settings."""
    got: dict[str, Any] = {}

    @takes_settings(kind=WithTwoMore)
    def command(model: str, *, settings: Mapping[str, Any]) -> None:
        got.update(settings)

    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, ["m", *arguments])
    assert result.exit_code == 0, result.output
    return got


def test_its_option_goes_before_its_key_and_that_before_its_default(
    with_two_more: None, tmp_path: Path
) -> None:
    def params(environ: dict[str, str], *arguments: str) -> dict[str, Any]:
        chosen = configured(read_settings(environ, tmp_path), WithTwoMore)
        found = spec_params(given_to(*arguments), chosen, WithTwoMore)
        made = msgspec.convert({"model": "m", **found}, WithTwoMore)
        require_in_range(made)
        return {"patience": made.patience, "mood": made.mood}

    file = {"POTLUCK_PATIENCE": "3.5", "POTLUCK_MOOD": "bold"}
    assert params({}) == {"patience": 2.0, "mood": Mood.CALM}
    assert params(file) == {"patience": 3.5, "mood": Mood.BOLD}
    assert params(file, "--patience", "4") == {"patience": 4.0, "mood": Mood.BOLD}
    assert params(file, "--mood", "calm") == {"patience": 3.5, "mood": Mood.CALM}
    with pytest.raises(ParameterError, match="patience is 10"):
        params({}, "--patience", "10")
    with pytest.raises(UsageError, match="POTLUCK_PATIENCE"):
        params({"POTLUCK_PATIENCE": "10"})


def test_it_is_checked_wherever_it_comes_from() -> None:
    with pytest.raises(ParameterError, match="patience is -1"):
        require_in_range(WithTwoMore(model="m", patience=-1))


def test_it_is_documented() -> None:
    documented = {name: rest for name, *rest in rows(settings_struct(WithTwoMore))}
    assert documented["`patience`"] == ["number (≥ 0, ≤ 9)", "`2.0`", "how long to smile"]
    assert documented["`mood`"] == ['`"calm"`, `"bold"`', '`"calm"`', "the mood"]
    properties = json_schema(Shown)["$defs"]["Shown"]["properties"]
    assert properties["patience"] == {
        "type": "number",
        "description": "How long to smile.",
        "minimum": 0,
        "maximum": 9,
    }
    assert properties["mood"]["description"] == "The mood."
