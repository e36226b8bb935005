"""Convert the library's errors to one line that names the keyword."""

from __future__ import annotations

import re

NO_TEXT = "no text matches the grammar"
TOO_COMPLEX = "the grammar is too complex"

_MAX_CHARACTERS = 300

_SCHEMA_USES = (
    (re.compile(r"Unimplemented keys: \[(.*)\]"), "{0}"),
    (re.compile(r"Unknown format: (.*)"), '"format": "{0}"'),
    (re.compile(r"oneOf constraints are not supported"), '"oneOf" with options that can overlap'),
    (re.compile(r"Resource '(.*?)' is not present"), '"$ref" to another document ("{0}")'),
    (
        re.compile(r"patternProperty regexes .* are not disjoint"),
        '"patternProperties" that overlap',
    ),
)


def problem_of(error: str) -> str:
    """Return the problem of a grammar in one line, from the library's error."""
    for pattern, what in _SCHEMA_USES:
        if match := pattern.search(error):
            return f"the JSON schema uses {what.format(*match.groups())}, which is not supported"
    if match := re.search(r"Pointer '(.*)' does not exist", error):
        return f'the JSON schema has a "$ref" to "{match[1]}", which does not exist'
    if "items; max is" in error or "too complex" in error.lower() or "too many" in error:
        return TOO_COMPLEX
    if "no tokens allowed" in error or "NoExtension" in error:
        return NO_TEXT
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    if not lines:
        return "the grammar cannot be used"
    first = lines[0].partition("; following special tokens")[0]
    reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return ": ".join([first, *reasons[:1]])[:_MAX_CHARACTERS]
