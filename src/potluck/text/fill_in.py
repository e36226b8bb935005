"""Fill-in-the-middle prompts for code models.

Models trained for it have tokens for the text before the gap, the text after it and the gap itself.
Families arrange them in a few different ways, as documented in their model cards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from potluck.errors import PromptTooLongError
from potluck.text.detokenize import token_text
from potluck.types.text import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """The texts of one family's tokens. ``middle`` is empty if no token marks the gap.

    ``is_suffix_first``: the text after the gap precedes the text before it. ``ends`` are additional
    tokens that end the filled-in text.
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
    _Family(  # Codestral, whose vocabulary has a [MIDDLE] that its prompts do not use
        prefix="[PREFIX]", suffix="[SUFFIX]", middle="", is_suffix_first=True
    ),
)
"""The first family whose tokens are all in the vocabulary is used."""

_MARK = "\u2020"
"""A character that never merges with others: the text after it is not at the beginning of a text.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FillIn:
    """The fill-in-the-middle format of a model.

    ``middle`` is None if no token marks the gap. ``ends`` end the filled-in text, in addition to
    the tokens that end every text.
    """

    prefix: int
    suffix: int
    middle: int | None
    is_suffix_first: bool = False
    ends: frozenset[int] = frozenset()

    def prompt(
        self, tokenizer: Tokenizer, prefix: str, suffix: str, *, max_tokens: int | None = None
    ) -> list[int]:
        """Return the prompt for the text between ``prefix`` and ``suffix``.

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
    """Return how the model of ``tokenizer`` fills in text, or None if it does not support it.

    ``named`` are the tokens ``prefix``, ``suffix`` and ``middle`` that the model's files name; a
    family whose texts are in the vocabulary takes precedence, because it determines the order.
    """
    for family in _FAMILIES:
        prefix, suffix, middle, *ends = (
            _token(tokenizer, text)
            for text in (family.prefix, family.suffix, family.middle, *family.ends)
        )
        if prefix is None or suffix is None or (family.middle and middle is None):
            continue
        found = (prefix, suffix, middle, *ends)
        return FillIn(
            prefix=prefix,
            suffix=suffix,
            middle=middle,
            is_suffix_first=family.is_suffix_first,
            ends=frozenset(token for token in found if token is not None),
        )
    if named is not None and {"prefix", "suffix", "middle"} <= set(named):
        prefix, suffix, middle = (named[name] for name in ("prefix", "suffix", "middle"))
        marks = frozenset((prefix, suffix, middle))
        return FillIn(prefix=prefix, suffix=suffix, middle=middle, ends=marks)
    return None


def _token(tokenizer: Tokenizer, text: str) -> int | None:
    """Return the token whose whole text is ``text``."""
    tokens = tokenizer.encode(text, add_bos=False, parse_special=True)
    if len(tokens) != 1:
        return None
    (token,) = tokens
    return token if token_text(tokenizer, token) == text else None


def _continued(tokenizer: Tokenizer, text: str, max_tokens: int | None) -> list[int]:
    """Return the tokens of a text that is not at the beginning: without a leading space."""
    if not tokenizer.strips_prefix_space:
        return tokenizer.encode(text, add_bos=False, max_tokens=max_tokens)
    mark = tokenizer.encode(_MARK, add_bos=False)
    room = None if max_tokens is None else max_tokens + len(mark)
    tokens = tokenizer.encode(_MARK + text, add_bos=False, max_tokens=room)
    return tokens[len(mark) :] if tokens[: len(mark)] == mark else tokens
