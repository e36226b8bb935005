"""Filling in the middle of a text: the tokens by which code models are asked for it.

A model that was trained for it has tokens for the text before the gap, the text after it and the
gap itself. Families arrange them in a few ways, as their model cards say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from potluck.errors import PromptTooLongError
from potluck.types.text import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """The texts of one family's tokens. ``middle`` is empty where nothing stands for the gap.

    ``is_suffix_first``: the text after the gap comes before the other one. ``ends`` are further
    tokens that end what the model fills in.
    """

    prefix: str
    suffix: str
    middle: str
    is_suffix_first: bool = False
    ends: tuple[str, ...] = ()


_FAMILIES: Sequence[_Family] = (
    _Family(  # Qwen 2.5 and Qwen 3 Coder, CodeGemma, Granite from 3.0
        prefix="<|fim_prefix|>",
        suffix="<|fim_suffix|>",
        middle="<|fim_middle|>",
        ends=("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"),
    ),
    _Family(  # StarCoder, Granite Code, Refact
        prefix="<fim_prefix>",
        suffix="<fim_suffix>",
        middle="<fim_middle>",
        ends=("<fim_pad>", "<file_sep>", "<repo_name>", "<reponame>"),
    ),
    _Family(  # SantaCoder
        prefix="<fim-prefix>", suffix="<fim-suffix>", middle="<fim-middle>", ends=("<fim-pad>",)
    ),
    _Family(  # DeepSeek Coder
        prefix="<\uff5cfim\u2581begin\uff5c>",
        suffix="<\uff5cfim\u2581hole\uff5c>",
        middle="<\uff5cfim\u2581end\uff5c>",
    ),
    _Family(
        prefix="\u2581<PRE>", suffix="\u2581<SUF>", middle="\u2581<MID>", ends=("\u2581<EOT>",)
    ),
    _Family(prefix="<PRE>", suffix="<SUF>", middle="<MID>", ends=("<EOT>",)),  # CodeLlama
    _Family(  # CodeGeeX 4, GLM 4
        prefix="<|code_prefix|>", suffix="<|code_suffix|>", middle="<|code_middle|>"
    ),
    _Family(  # Seed Coder
        prefix="<[fim-prefix]>",
        suffix="<[fim-suffix]>",
        middle="<[fim-middle]>",
        is_suffix_first=True,
    ),
    _Family(  # Codestral, whose vocabulary has a [MIDDLE] that its prompts have not
        prefix="[PREFIX]", suffix="[SUFFIX]", middle="", is_suffix_first=True
    ),
)
"""The first whose tokens a vocabulary has counts."""

_MARK = "\u2020"
"""A character that merges with nothing: what follows it is not at the beginning of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FillIn:
    """How a model is asked to fill in the middle of a text.

    ``middle`` is None where nothing stands for the gap. ``ends`` end what it fills in, in addition
    to what ends every text.
    """

    prefix: int
    suffix: int
    middle: int | None
    is_suffix_first: bool = False
    ends: frozenset[int] = frozenset()

    def prompt(
        self, tokenizer: Tokenizer, prefix: str, suffix: str, *, max_tokens: int | None = None
    ) -> list[int]:
        """Return the tokens that ask for what is between ``prefix`` and ``suffix``.

        Raises as ``Tokenizer.encode``.
        """
        before = tokenizer.encode(prefix, add_bos=False, max_tokens=max_tokens)
        after = _continued(tokenizer, suffix, max_tokens)
        begin = tokenizer.encode("")
        parts = [(self.prefix, before), (self.suffix, after)]
        if self.is_suffix_first:
            parts.reverse()
        tokens = [*begin, *(token for mark, text in parts for token in (mark, *text))]
        if self.middle is not None:
            tokens.append(self.middle)
        if max_tokens is not None and len(tokens) > max_tokens:
            raise PromptTooLongError(len(tokens), max_tokens + 1)
        return tokens


def find_fill_in(tokenizer: Tokenizer, named: Mapping[str, int] | None = None) -> FillIn | None:
    """Return how the model of ``tokenizer`` fills in text; None if it cannot.

    ``named`` are the tokens ``prefix``, ``suffix`` and ``middle`` that its files name; those of a
    family whose texts the vocabulary has go first, because they say what the order is.
    """
    for family in _FAMILIES:
        prefix, suffix = (_token(tokenizer, text) for text in (family.prefix, family.suffix))
        middle = _token(tokenizer, family.middle) if family.middle else None
        if prefix is None or suffix is None or (family.middle and middle is None):
            continue
        ends = (_token(tokenizer, text) for text in family.ends)
        marks = {prefix, suffix, *(() if middle is None else (middle,))}
        return FillIn(
            prefix=prefix,
            suffix=suffix,
            middle=middle,
            is_suffix_first=family.is_suffix_first,
            ends=frozenset({each for each in ends if each is not None} | marks),
        )
    if named is not None and {"prefix", "suffix", "middle"} <= set(named):
        marks = {named["prefix"], named["suffix"], named["middle"]}
        return FillIn(
            prefix=named["prefix"],
            suffix=named["suffix"],
            middle=named["middle"],
            ends=frozenset(marks),
        )
    return None


def _token(tokenizer: Tokenizer, text: str) -> int | None:
    """The token whose text this is, as a whole."""
    tokens = tokenizer.encode(text, add_bos=False, parse_special=True)
    if len(tokens) != 1:
        return None
    (token,) = tokens
    written = tokenizer.control_text(token) or tokenizer.token_bytes(token).decode(errors="replace")
    return token if written == text else None


def _continued(tokenizer: Tokenizer, text: str, max_tokens: int | None) -> list[int]:
    """The tokens of a text that is no beginning: without the space that is put before one."""
    if not tokenizer.strips_prefix_space:
        return tokenizer.encode(text, add_bos=False, max_tokens=max_tokens)
    mark = tokenizer.encode(_MARK, add_bos=False)
    room = None if max_tokens is None else max_tokens + len(mark)
    tokens = tokenizer.encode(_MARK + text, add_bos=False, max_tokens=room)
    return tokens[len(mark) :] if tokens[: len(mark)] == mark else tokens
