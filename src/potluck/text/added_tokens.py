"""Tokens that are matched in the text itself, before any other tokenization.

They are *control* tokens (begin and end of a text, turn markers of a chat) or plain words that a
model's makers added (``<think>``, runs of spaces). We match them ourselves instead of letting the
``tokenizers`` library do it, because whether a control token's text may become that token is
decided call by call and place by place, and in the library it is one mutable switch per tokenizer.

Which tokens are control tokens: those that the model's files flag as special or control, those
that begin or end a text, and turn markers (``is_turn_marker``), which some files forget to flag.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import groupby
from operator import itemgetter

_TURN_MARKER = re.compile(
    r"<\|[^|<>\s]+\|?>|<[^|<>\s]+\|>|<(?:start|end)_of_turn>|</?s>|\[/?INST\]"
)
_NO_MATCH = re.compile(r"(?!)")
_SPACES = re.compile(r"\s*")
SEARCHED_CHARACTERS = 64 * 1024
"""Of one search: at most a few milliseconds."""
_MAX_DEPTH = 48
"""Of branches within branches in a pattern: runs of up to 31 spaces are added tokens in Gemma, and
Python's compiler of patterns recurses about four times for each."""
_LITERAL = "\uffff"
"""Stands for a character that no token may contain; a Unicode non-character."""


def is_turn_marker(text: str) -> bool:
    """Whether an added token's text looks like a marker of a chat template.

    The forms of Llama 3, ChatML and Phi (``<|…|>``), Gemma (``<start_of_turn>``), Gemma 4
    (``<|turn>``, ``<turn|>``), Llama 2 and Mistral (``<s>``, ``[INST]``).
    """
    return _TURN_MARKER.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """One such token; the flags are those of the ``tokenizers`` library.

    ``control``: decodes to nothing, and is matched only on request. ``lstrip``, ``rstrip``: takes
    the white space to its left or right with it. ``single_word``: only matched where no word
    character touches it. The library's ``normalized`` is left out: the text is always searched as
    it was written.
    """

    text: str
    token: int
    control: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class AddedTokens:
    """A set of added tokens. Immutable."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        """Later tokens replace earlier ones of the same text or id; empty texts match nothing."""
        self.by_id = {token.token: token for token in tokens}
        self._by_text = {token.text: token for token in self.by_id.values() if token.text}
        self._all = alternatives(self._by_text)
        self._ordinary = alternatives(t.text for t in self._by_text.values() if not t.control)
        self._longest = max(map(len, self._by_text), default=0)

    @property
    def control(self) -> tuple[AddedToken, ...]:
        """The control tokens in ascending order of id."""
        return tuple(t for _, t in sorted(self.by_id.items()) if t.control)

    def split(
        self, text: str, *, parse_control: bool, literal: Sequence[int] = ()
    ) -> Iterator[str | AddedToken]:
        """Added tokens and the non-empty stretches of text between them, in order.

        The leftmost token is matched first, of several the longest. No token is matched over a
        character whose index is in ``literal``.
        """
        pattern = self._all if parse_control else self._ordinary
        searched = _mask(text, literal)
        start = position = 0
        while match := search_in_parts(pattern, searched, position, self._longest):
            token = self._by_text[match[0]]
            token_start, token_end = match.span()
            if token.single_word and _touches_word(text, token_start, token_end):
                position = token_start + 1
                continue
            if token.lstrip:
                token_start = start + len(text[start:token_start].rstrip())
            if token.rstrip:
                token_end = _end_of_spaces(text, token_end)
            if token_start > start:
                yield text[start:token_start]
            yield token
            start = position = token_end
        if start < len(text):
            yield text[start:]


def search_in_parts(
    pattern: re.Pattern[str], text: str, position: int, longest: int
) -> re.Match[str] | None:
    """``pattern.search(text, position)`` for a pattern whose matches have ``longest`` characters.

    One search of a text of megabytes would keep all other threads waiting until it ends.
    """
    while position < len(text):
        end = position + SEARCHED_CHARACTERS
        match = pattern.search(text, position, end + longest)
        if match is None or (match.start() >= end and end + longest < len(text)):
            position = end
            continue
        return match
    return None


def alternatives(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern for the longest of ``texts`` at a place; none of them may be empty.

    Gemma has 6,500 added tokens, of which most begin alike: all branches of a plain list would be
    tried at every ``<``, which takes seconds for a text of a megabyte.
    """
    each = sorted(set(texts))
    return re.compile(_tree(each, _MAX_DEPTH)) if each else _NO_MATCH


def _tree(texts: Sequence[str], depth: int) -> str:
    """A pattern for the longest of ``texts``, which are sorted and differ.

    Texts with the same beginning share it, down to ``depth`` branches after one another.
    """
    if depth == 0:
        return "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))
    branches = []
    for _, group in groupby((text for text in texts if text), key=itemgetter(0)):
        alike = list(group)
        first, last = alike[0], alike[-1]
        differs = (i for i, pair in enumerate(zip(first, last, strict=False)) if len({*pair}) > 1)
        shared = first[: next(differs, len(first))]
        rest = [text[len(shared) :] for text in alike]
        follows = f"(?:{_tree(rest, depth - 1)})" if len(rest) > 1 else ""
        branches.append(re.escape(shared) + follows)
    if not texts[0]:
        branches.append("")
    return "|".join(branches)


def _mask(text: str, literal: Sequence[int]) -> str:
    return replace_at(text, ((index, _LITERAL) for index in sorted(literal)))


def replace_at(text: str, replacements: Iterable[tuple[int, str]]) -> str:
    """``text`` with other characters at some indices.

    They are given in ascending order; of several characters for one index the first counts.
    """
    changed = StringIO()
    start = 0
    for index, character in replacements:
        if index >= start:
            changed.write(text[start:index])
            changed.write(character)
            start = index + 1
    if not start:
        return text
    changed.write(text[start:])
    return changed.getvalue()


def _end_of_spaces(text: str, position: int) -> int:
    match = _SPACES.match(text, position)
    return position if match is None else match.end()


def _touches_word(text: str, start: int, end: int) -> bool:
    before, after = text[start - 1 : start] if start else "", text[end : end + 1]
    return any(neighbour.isalnum() or neighbour == "_" for neighbour in (before, after))
