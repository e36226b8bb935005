"""Options for the settings of deployments, and what is written in another way than it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from potluck.cli.settings import configured, read_settings
from potluck.cli.spec_options import Quant, spec_params, takes_settings
from potluck.errors import ParameterError
from potluck.types.choices import Quantization
from potluck.types.deployment_spec import DeploymentSpec, settings_of, value_types


def given_to(*arguments: str) -> Mapping[str, Any]:
    """What a command gets that takes the settings."""
    got: dict[str, Any] = {}

    @takes_settings()
    def command(model: str, *, settings: Mapping[str, Any]) -> None:
        got.update(settings)

    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, ["m", *arguments])
    assert result.exit_code == 0, result.output
    return got


def test_every_setting_can_be_set_and_has_a_help() -> None:
    found = settings_of(DeploymentSpec)
    assert {*DeploymentSpec.__struct_fields__} == {"model", *found}
    for name, setting in found.items():
        assert setting.help, name
        assert setting.option or setting.key, name
        assert bool(setting.key) == bool(setting.meaning), name
        is_number = value_types(DeploymentSpec)[name] in (int, float)
        assert is_number == (setting.numbers is not None), name


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (("--quant", "auto"), "quantization", None),
        (("--quant", "q4_k"), "quantization", "q4_k"),
        (("--mmap",), "is_mapped", True),
        (("--no-store",), "keep_weights", False),
        (("--no-prefix-cache",), "prefix_cache", False),
        (("--prefix-cache",), "prefix_cache", True),
        (("--cache-disk", "2G"), "cache_disk_bytes", 2 << 30),
        (("--tensor-parallel", "off"), "tensor_parallel", 1),
        (("--for", "memory"), "objective", "memory"),
        (("--spares", "2"), "num_spares", 2),
        (("--recovery-wait", "5"), "recovery_wait_seconds", 5.0),
        (("--context", "64"), "context_tokens", 64),
    ],
)
def test_options_that_are_written_in_another_way(
    arguments: tuple[str, ...], field: str, value: object
) -> None:
    params = spec_params(given_to(*arguments), configured(read_settings({}, None)))
    assert params[field] == value


def test_a_layout_is_left_to_those_who_know_the_nodes() -> None:
    given = given_to("--layout", "a=4")
    assert given["layout"] == "a=4"
    assert "layout" not in spec_params(given, configured(read_settings({}, None)))


def test_an_option_that_is_not_given_leaves_the_default() -> None:
    params = spec_params(given_to(), configured(read_settings({}, None)))
    made = msgspec.convert({"model": "m", **params}, DeploymentSpec)
    assert made == DeploymentSpec(model="m")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_spares": 65}, "spares is 65, but must be an integer from 0 to 64"),
        ({"target_step_ms": 0.5}, "target_step_ms is 0.5, but must be a number from 1 to 60000"),
        ({"cache_disk_bytes": "2 apples"}, "--cache-disk 2 apples is not a valid size"),
        ({"num_streams": 0}, "streams is 0, but must be an integer from 1 to 256"),
    ],
)
def test_other_values_are_refused_by_the_name_of_the_option(
    given: dict[str, object], message: str
) -> None:
    with pytest.raises(ParameterError) as raised:
        spec_params(given, configured(read_settings({}, None)))
    assert raised.value.message == message


def test_the_choices_of_quantization_are_those_that_there_are() -> None:
    assert {each.value for each in Quant} == {*(each.value for each in Quantization), "auto"}
