"""Fields of other servers that mean the same as a field of this one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from potluck.api.errors import invalid

_THINKING_TYPES = {"enabled": True, "disabled": False}


def with_own_names(document: dict[str, Any], *, is_chat: bool) -> dict[str, Any]:
    """Replace such fields in a request's ``document``, and return it.

    Those for reasoning exist in chats only. Raises ``ApiError`` for invalid ones, and for one that
    contradicts the field that it stands for.
    """
    for name, read in (_CHAT_READERS if is_chat else _READERS).items():
        value = document.pop(name, None)
        if value is None:
            continue
        for own_name, meant in read(value):
            if document.get(own_name, meant) != meant:
                raise invalid(name, f"{name} contradicts {own_name}: omit one of them")
            document[own_name] = meant
    return document


def _repeat_penalty(value: object) -> Iterator[tuple[str, object]]:
    """llama.cpp and Ollama."""
    yield "repetition_penalty", value


def _thinking(value: object) -> Iterator[tuple[str, object]]:
    """DeepSeek and GLM: ``{"type": "enabled"}``; also a plain boolean."""
    if isinstance(value, bool):
        yield "enable_thinking", value
        return
    fields = _object(value, "thinking", ("type",))
    kind = fields.get("type")
    if not isinstance(kind, str) or kind not in _THINKING_TYPES:
        raise invalid("thinking.type", "thinking.type must be 'enabled' or 'disabled'")
    yield "enable_thinking", _THINKING_TYPES[kind]


def _reasoning(value: object) -> Iterator[tuple[str, object]]:
    """OpenRouter: ``{"effort": "high"}`` or ``{"enabled": true}``; ``exclude`` is not supported."""
    fields = _object(value, "reasoning", ("effort", "enabled", "exclude"))
    if fields.get("exclude") not in (None, False):
        raise invalid(
            "reasoning.exclude",
            "reasoning.exclude is not supported: omit it, or set it to false",
            code="unsupported_parameter",
        )
    if fields.get("effort") is not None:
        yield "reasoning_effort", fields["effort"]
    if fields.get("enabled") is not None:
        yield "enable_thinking", fields["enabled"]


_READERS = {"repeat_penalty": _repeat_penalty}
_CHAT_READERS = {**_READERS, "thinking": _thinking, "reasoning": _reasoning}


def _object(value: object, name: str, known: tuple[str, ...]) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise invalid(name, f"{name} should be an object", code="invalid_type")
    for each in value:
        if each not in known:
            where = f"{name}.{each[:64]}"
            raise invalid(where, f"unknown parameter {where}", code="unknown_parameter")
    return value
