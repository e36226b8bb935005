"""Options and configuration keys for the settings that ``potluck.types.deployment_spec`` declares.

``option`` makes the option of one setting, ``takes_settings`` gives those of many to a command, and
``spec_params`` returns what the options and the configuration ask for.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from typer.models import OptionInfo

from potluck.types.choices import Quantization
from potluck.types.deployment_spec import DeploymentSpec, Setting, settings_of, value_types
from potluck.types.ranges import MAX_WHOLE


class Quant(enum.Enum):
    """The choices of ``--quant``."""

    NONE = "none"
    Q8_0 = "q8_0"
    Q6_K = "q6_k"
    Q4_K = "q4_k"
    IQ4_NL = "iq4_nl"
    Q4_0 = "q4_0"
    Q3_K = "q3_k"
    AUTO = "auto"

    @property
    def quantization(self) -> Quantization | None:
        """None for auto."""
        return None if self is Quant.AUTO else Quantization(self.value)


def option(name: str) -> OptionInfo:
    """Return the option of a setting."""
    return _option(settings_of(DeploymentSpec)[name])


def takes_settings(
    *, kind: type[DeploymentSpec] = DeploymentSpec, only: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of the settings of ``kind``, or ``only`` of some of them.

    In its place, its parameter ``settings`` gets what was given, by field.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        options = _parameters(kind, only)
        names = [each.name for each in options]

        @wraps(command)
        def taking(**given: Any) -> None:
            command(settings={name: given.pop(name) for name in names}, **given)

        parameters: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
            own = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            parameters += options if name == "settings" else [own]
        declare_parameters(taking, parameters)
        return taking

    return decorate


def declare_parameters(
    function: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> None:
    """Make Typer see ``parameters`` as those of a function that takes any."""
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in parameters}


def _parameters(kind: type[DeploymentSpec], only: Collection[str]) -> list[inspect.Parameter]:
    types = value_types(kind)
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if setting.is_flag else None,
            annotation=Annotated[_option_type(types[name], setting), _option(setting)],
        )
        for name, setting in settings_of(kind).items()
        if setting.option and (not only or name in only)
    ]


def _option(setting: Setting) -> OptionInfo:
    made = typer.Option(
        setting.option, metavar=setting.metavar, help=setting.help, show_default=False
    )
    assert isinstance(made, OptionInfo)
    return made


def _option_type(value_type: Any, setting: Setting) -> Any:
    """Return the type that Typer reads the option as."""
    if setting.is_flag:
        return bool
    if setting.parse == "quantization":
        return Quant | None
    return (str if setting.parse else value_type) | None


def spec_params(
    given: Mapping[str, Any],
    configured: Mapping[str, Any],
    kind: type[DeploymentSpec] = DeploymentSpec,
) -> dict[str, Any]:
    """Return the fields of a specification that options or else the configuration set.

    It lacks the layout, which only means something with the nodes of a cluster. Raise
    ``ParameterError`` for options that cannot be parsed, and numbers out of their range.
    """
    params = {}
    for name, setting in settings_of(kind).items():
        if setting.parse == "layout":
            continue
        if given.get(name) not in ((None, False) if setting.is_flag else (None,)):
            value = parse(setting, given[name])
        elif setting.key:
            value = configured[name]
        else:
            continue
        if setting.numbers is not None and value is not None:
            setting.numbers.require(setting.label, value)
        params[name] = msgspec.to_builtins(value)
    return params


def parse(setting: Setting, value: Any) -> Any:
    """Return the value of a field for that of its option or key."""
    parser = _PARSERS.get(setting.parse)
    return value if parser is None else parser(value)


def parse_units(text: object) -> object:
    """Return what ``--tensor-parallel`` asks for, as ``DeploymentSpec`` has it; other texts as they
    are, to be refused.
    """
    if text in ("auto", "off"):
        return None if text == "auto" else 1
    written = str(text)
    is_number = written.isascii() and written.isdigit() and len(written) <= len(str(MAX_WHOLE))
    return int(written) if is_number else text


def parse_draft(text: str) -> str:
    """Return where drafts come from; a path that exists is made absolute, for other processes.

    A name without a slash may be that of a deployed model.
    """
    from potluck.cluster.agent.asking import absolute  # imported late, as below

    looks_like_path = "/" in text or Path(text).suffix.lower() == ".gguf"
    return absolute(text) if looks_like_path else text


def _parse_disk_size(size: int | str) -> int:
    if isinstance(size, int):
        return size
    from potluck.cli.addresses import parse_size  # imported late: every command reads settings

    return parse_size(size, "cache-disk")


_PARSERS: Mapping[str, Callable[[Any], object]] = {
    "flag": lambda _: True,
    "inverted flag": lambda _: False,
    "quantization": lambda choice: choice.quantization,
    "size": _parse_disk_size,
    "units": parse_units,
    "draft": parse_draft,
}
