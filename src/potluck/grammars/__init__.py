"""Grammars that constrain a model's output, and the tokens that they allow.

A grammar is a text in llguidance's JSON form, as ``LLMatcher`` expects: one or more named grammars,
the first of which is the start (``build``). Gateways check it before a request proceeds
(``check``); the last stage of a model compiles it, and follows each sequence through it
(``matchers``, ``step_masks``). The allowed tokens are a mask with one bit per token; sampling is
not done here.

llguidance is imported where it is used, so that it is not loaded if no grammar is used.
"""

from potluck.grammars.build import choice, ebnf, json_object, json_schema, lark, regex

__all__ = [
    "build",
    "check",
    "choice",
    "ebnf",
    "json_object",
    "json_schema",
    "lark",
    "limits",
    "regex",
    "step_masks",
    "vocabulary",
]
