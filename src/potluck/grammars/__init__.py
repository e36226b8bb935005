"""Grammars that a model's output must match, and the tokens that they allow.

A grammar is a text in llguidance's JSON form, as ``LLMatcher`` takes it: one or more named grammars
of which the first is the start (``build``). Gateways check it before a request goes on (``check``);
the last stage of a model compiles it, and follows each sequence through it (``matchers``,
``step_masks``). What is allowed is a mask with a bit for each token; sampling is not done here.

llguidance is imported where it is used: whoever needs no grammar does not load it.
"""

from potluck.grammars.build import choice, ebnf, json_object, json_schema, lark, regex

__all__ = ["choice", "ebnf", "json_object", "json_schema", "lark", "regex"]
