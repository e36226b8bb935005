"""Generate ``docs/reference/settings.md``: every setting, from the class that reads them."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

from potluck.cli.settings import Settings

_HEAD = """\
# Settings

Generated from the code by `python -m tools.reference`.

Settings are defaults for the options of all commands. In ascending order of precedence, a value
comes from the default below, from `~/.config/potluck/config.toml` (or
`$XDG_CONFIG_HOME/potluck/config.toml`), from the environment variable `POTLUCK_` and the name in
capitals, and from the command-line option. A variable that is empty counts as unset. Values out of
range, and unknown names in the file, are errors; a variable with an unknown name causes a warning.

```toml
# ~/.config/potluck/config.toml
threads = 4
objective = "throughput"
cache_disk_bytes = 21474836480
```
"""


def page() -> str:
    """Return the text of the page."""
    lines = [f"| {' | '.join(cells)} |" for cells in rows(Settings)]
    head = ["| name | values | default | meaning |", "|---|---|---|---|"]
    return "\n".join([_HEAD, *head, *lines, ""])


def rows(settings: Any) -> Iterator[tuple[str, str, str, str]]:
    """Yield the name, the values, the default and the meaning of each setting of a struct."""
    described = inspect.type_info(settings)
    assert isinstance(described, inspect.StructType)
    defaults = settings()
    for field in described.fields:
        value = getattr(defaults, field.name)
        yield (
            f"`{field.name}`",
            _values(field.type),
            "automatic" if value is None else f"`{_written(value)}`",
            _description(field.type),
        )


def _description(described: inspect.Type) -> str:
    """Return the description of a field, which its type or one of a union's members carries."""
    assert isinstance(described, inspect.Metadata), "a setting without a description"
    text = (described.extra_json_schema or {}).get("description")
    assert isinstance(text, str)
    return text


def _values(described: inspect.Type) -> str:
    """Return which values a type takes, in words."""
    match described:
        case inspect.Metadata():
            return _values(described.type)
        case inspect.UnionType():
            members = [each for each in described.types if not isinstance(each, inspect.NoneType)]
            return ", or ".join(_values(each) for each in members)
        case inspect.EnumType():
            return ", ".join(f"`{_written(each)}`" for each in described.cls)
        case inspect.BoolType():
            return "`true`, `false`"
        case inspect.IntType():
            return "whole number" + _range(described.ge, described.gt, described.le)
        case inspect.FloatType():
            return "number" + _range(described.ge, described.gt, described.le)
        case inspect.StrType(pattern=str(pattern)):
            return f"text matching `{pattern.replace('|', chr(92) + '|')}`"
        case inspect.StrType():
            return "text"
        case _:
            return "list of texts"


def _range(at_least: float | None, above: float | None, at_most: float | None) -> str:
    parts = []
    if at_least is not None:
        parts.append(f"≥ {at_least:g}" if at_least < 1e6 else f"≥ {at_least}")
    if above is not None:
        parts.append(f"> {above:g}")
    if at_most is not None:
        parts.append(f"≤ {at_most:g}" if at_most < 1e6 else f"≤ {at_most}")
    return f" ({', '.join(parts)})" if parts else ""


def _written(value: Any) -> str:
    """Return a value as TOML writes it."""
    raw = value.value if isinstance(value, enum.Enum) else value
    return msgspec.json.encode(raw).decode()
