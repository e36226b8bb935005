"""Templates that leave out calls which their models do write, with those calls.

The first templates of LFM2 and LFM2.5 write the content of a message and nothing else. Calls then
have to be a part of the content, with marks that are control tokens, which nothing in a content may
be here (``potluck.text.shield``). Later templates of these models write calls themselves; what is
added here writes them alike, but for texts, which are quoted as in JSON.
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
    """Return the template ``source``, which also writes calls if it is one that leaves them out."""
    is_lfm2 = all(sign in source for sign in _LFM2_SIGNS)
    if not is_lfm2 or "tool_calls" in source:
        return source
    return source.replace(_LFM2_CONTENT, _LFM2_CALLS)
