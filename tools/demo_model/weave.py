"""Turns a template into a sentence: choices, slots and the small rules of English spelling.

A template is plain text with two kinds of marks: ``[one|two]`` picks one of the alternatives (they
may be nested) and ``{slot}`` is filled from the story's facts.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_ARTICLE = re.compile(r"\b([Aa]) (?=(?!uni|use|one\b)[aeiouAEIOU])")
_SPACES = re.compile(r" {2,}")


def choose(template: str, rng: random.Random) -> str:
    """Resolve every ``[a|b]`` in ``template``, the innermost first."""
    while (match := _CHOICE.search(template)) is not None:
        picked = rng.choice(match.group(1).split("|"))
        template = template[: match.start()] + picked + template[match.end() :]
    return template


def capitalise(text: str) -> str:
    """Give the first letter of ``text`` a capital, also behind an opening quotation mark."""
    for index, char in enumerate(text):
        if char.isalpha():
            return text[:index] + char.upper() + text[index + 1 :]
    return text


def weave(template: str, slots: Mapping[str, str], rng: random.Random) -> str:
    """Write out one template as text; an unknown slot is an error, not a gap in the story."""
    filled = choose(template, rng).format_map(slots)
    return capitalise(_ARTICLE.sub(r"\1n ", _SPACES.sub(" ", filled)).strip())
