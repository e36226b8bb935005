"""Choose the tool call format of a model by its chat template."""

from __future__ import annotations

from collections.abc import Collection

from potluck.errors import ParameterError
from potluck.text.reasoning import find_by_signs, reasoning_format
from potluck.text.tool_formats import formats
from potluck.text.tool_formats.chat_format import ChatFormat
from potluck.text.tool_formats.gemma import FUNCTION_GEMMA, GEMMA
from potluck.text.tool_formats.harmony import HarmonyFormat
from potluck.text.tool_formats.json_calls import HERMES
from potluck.text.tool_formats.pythonic import LFM2, PYTHONIC
from potluck.text.tool_formats.syntax import ToolSyntax
from potluck.types.output import OutputFormat

_SIGNS: tuple[tuple[tuple[str, ...], ToolSyntax | None], ...] = (
    (("<|channel|>analysis", "<|call|>"), None),  # harmony
    (("｜DSML｜", "function_calls"), formats.DEEPSEEK_V3_2),
    (("｜DSML｜",), formats.DEEPSEEK_V4),
    (("<｜tool▁sep｜>", "```json"), formats.DEEPSEEK_V3),
    (("<｜tool▁sep｜>",), formats.DEEPSEEK_V3_1),
    (("<|tool_calls_section_begin|>",), formats.KIMI_K2),
    (("<|tool_call:args|>",), formats.SOLAR),
    (("<|START_ACTION|>",), formats.COMMAND),
    (("[TOOL_CALLS]", "[ARGS]"), formats.MISTRAL),
    (("[TOOL_CALLS]",), formats.MISTRAL_LIST),
    (("<|tool_call>", "<tool_call|>"), GEMMA),
    (("<start_function_call>",), FUNCTION_GEMMA),
    (("<|tool_call_start|>",), LFM2),
    (("List of tools: ", "<|im_start|>"), LFM2),
    (("<minimax:tool_call>",), formats.MINIMAX_M2),
    (("<seed:tool_call>",), formats.SEED),
    (("<TOOLCALL>",), formats.NEMOTRON),
    (("<|function_call|>",), formats.GIGACHAT),
    (("<arg_key>",), formats.GLM),
    (("<tool_call>", "<function="), formats.QWEN_CODER),
    (("<|tool_call|>", "<|/tool_call|>"), formats.PHI),
    (("<|tool_call|>",), formats.GRANITE),
    (("<tool_calls>", "<end_of_sentence>"), formats.MINIMAX_M1),
    (("<tool_calls>",), formats.TOOL_CALLS_LIST),
    (("<tool_call>",), HERMES),
    (("<function=",), formats.FUNCTIONARY),
    (("functools",), formats.FUNCTOOLS),
    (("<|python_tag|>",), formats.LLAMA),
    (('"parameters": ', "<|eot_id|>"), formats.LLAMA),
    (('"parameters": ', "<|python_start|>"), formats.LLAMA),
)
"""Texts that identify a format: its templates contain all of them. The first match is used."""

FORMATS: dict[str, ToolSyntax] = {
    syntax.name: syntax
    for syntax in (
        *dict.fromkeys(syntax for _, syntax in _SIGNS if syntax is not None),
        PYTHONIC,
        formats.GENERIC,
    )
}
FORMAT_NAMES: tuple[str, ...] = tuple(sorted((*FORMATS, HarmonyFormat.name)))
"""Valid values of ``--tool-format``."""


def choose_output_format(
    template_source: str, special_tokens: Collection[str], *, tool_format: str | None = None
) -> OutputFormat:
    """Return the output format, reasoning and tool calls, of a model with this chat template.

    ``template_source`` is the template for chats with tools; empty if there is none.
    ``special_tokens`` are the texts of the model's control tokens. ``tool_format`` overrides the
    tool call format that the template implies. Raises ``ParameterError`` if the name is unknown.
    """
    control_tokens = frozenset(special_tokens)
    if tool_format is None:
        syntax = find_by_signs(_SIGNS, template_source, formats.GENERIC)
    else:
        # None is harmony, whose messages contain more than calls.
        require_format(tool_format)
        syntax = FORMATS.get(tool_format)
    if syntax is None:
        return HarmonyFormat(control_tokens=control_tokens)
    return ChatFormat(
        syntax=syntax,
        reasoning=reasoning_format(template_source),
        control_tokens=control_tokens,
    )


def require_format(name: str) -> None:
    """Raise ``ParameterError`` if there is no tool call format with this name."""
    if name not in FORMAT_NAMES:
        raise ParameterError(
            "tool_format",
            f"unknown tool-call format {name[:40]!r}",
            hint=f"known formats: {', '.join(FORMAT_NAMES)}",
        )
