"""Add tool calls to templates that omit them although their models generate them.

The first templates of LFM2 and LFM2.5 write the content of a message and nothing else. Calls would
have to be part of the content, with marks that are control tokens, which content cannot contain
here (``potluck.text.shield``). Later templates of these models write calls themselves; the code
added here writes them the same way, except for strings, which are quoted as in JSON.
"""

from __future__ import annotations

_LFM2_CONTENT = """{{- content + "<|im_end|>\\n" -}}"""
_LFM2_SIGNS = ("List of tools: ", "<|im_start|>")
_LFM2_CALLS = """\
{{- content -}}
{%- for call in message["tool_calls"] or [] -%}
{{- "<|tool_call_start|>[" if loop.first else ", " -}}
{{- call["function"]["name"] + "(" -}}
{%- for key, value in call["function"]["arguments"].items() -%}
{{- key + "=" -}}
{{- value | tojson if value is string or value is mapping else value | string -}}
{{- "" if loop.last else ", " -}}
{%- endfor -%}
{{- ")" -}}
{{- "]<|tool_call_end|>" if loop.last -}}
{%- endfor -%}
{{- "<|im_end|>\\n" -}}"""


def with_calls(source: str) -> str:
    """Return the template ``source``, changed to write tool calls if it is one that omits them."""
    is_lfm2 = all(sign in source for sign in _LFM2_SIGNS)
    if not is_lfm2 or "tool_calls" in source:
        return source
    return source.replace(_LFM2_CONTENT, _LFM2_CALLS)
