"""Grammars of single values that are not written as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from potluck.errors import ParameterError
from potluck.grammars.build import json_schema
from potluck.text.tool_formats.lark import TEXT, LarkSource, either
from potluck.text.tool_formats.schemas import Schema, branches, require_only

_TEXT_KEYWORDS = ("type", "enum", "const", "minLength", "maxLength", "pattern")


def text_or_json(
    lark: LarkSource,
    schema: Schema,
    root: Schema,
    where: str,
    text: Callable[[Schema], str],
    value: Callable[[str], str],
) -> str:
    """Return the expression of a value that is written as plain text if it is a string, else as
    JSON.

    ``text`` builds the expression of a string from its schema, including what follows it; ``value``
    appends the same to an expression of JSON.
    """
    texts, others = [], []
    for branch in branches(schema, root):
        kind = branch.get("type")
        if kind == "string":
            texts.append(text(branch))
        elif kind is None and not branch:
            texts.append(text({}))
        else:
            definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
            others.append(value(lark.part(json_schema({**branch, **definitions}))))
    return either(dict.fromkeys((*texts, *others)))


def text_expression(lark: LarkSource, schema: Schema, close: str, where: str) -> str:
    """Return the expression of a string that matches ``schema``, followed by ``close``."""
    require_only(schema, _TEXT_KEYWORDS, where)
    if "const" in schema:
        return lark.text(f"{schema['const']}{close}")
    options = schema.get("enum")
    if isinstance(options, list | tuple):
        return either(lark.text(f"{each}{close}") for each in options if isinstance(each, str))
    return lark.until(close, text=_terminal(lark, schema, where))


def _terminal(lark: LarkSource, schema: Schema, where: str) -> str:
    patterns = []
    lengths = [schema.get("minLength", 0), schema.get("maxLength", "")]
    if lengths != [0, ""]:
        if not all(each == "" or (isinstance(each, int) and 0 <= each < 2**16) for each in lengths):
            raise ParameterError(
                "tools", f"minLength and maxLength of {where} must be from 0 to 65,535"
            )
        patterns.append(f"(?s:.{{{lengths[0]},{lengths[1]}}})")
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        before = "" if pattern.startswith("^") else "(?s:.*)"
        after = "" if re.search(r"(?<!\\)(?:\\\\)*\$$", pattern) else "(?s:.*)"
        body = pattern.removeprefix("^")
        body = body[:-1] if not after else body
        patterns.append(f"{before}(?:{body}){after}")
    if not patterns:
        return TEXT
    return lark.terminal(" & ".join(f"/{_escaped(each)}/" for each in patterns))


def _escaped(pattern: str) -> str:
    return re.sub(
        r"\\.|/", lambda match: "\\/" if match[0] == "/" else match[0], pattern, flags=re.DOTALL
    ).replace("\n", "\\n")


def comma_separated(lark: LarkSource, items: Sequence[tuple[str, bool]], separator: str) -> str:
    """Return the expression of ``items`` in their order; each is required or optional."""
    tails = [""]  # of what may follow an item that is present
    for expression, is_required in reversed(items[1:]):
        item = f"{separator} {expression}"
        tails.insert(0, lark.rule(f"{item if is_required else f'({item})?'} {tails[0]}"))
    whole = ""
    for (expression, is_required), tail in zip(reversed(items), reversed(tails), strict=False):
        first = f"{expression} {tail}"
        if is_required:
            whole = first
        else:
            whole = lark.rule(f"{first} | {whole}" if whole else f"({first})?")
    return whole
