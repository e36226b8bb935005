"""A command that takes the settings of deployments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from typer.testing import CliRunner

from potluck.cli.spec_options import takes_settings
from potluck.types.deployment_spec import DeploymentSpec


def settings_given_to(kind: type[DeploymentSpec], *arguments: str) -> Mapping[str, Any]:
    """Return the settings that a command gets from its arguments."""
    got: dict[str, Any] = {}

    @takes_settings(kind=kind)
    def command(model: str, *, settings: Mapping[str, Any]) -> None:
        got.update(settings)

    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, ["m", *arguments])
    assert result.exit_code == 0, result.output
    return got
