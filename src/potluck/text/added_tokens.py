"""Added tokens, which are matched in the text itself before any other tokenization.

They are *control* tokens (beginning and end of a text, turn markers of a chat) or plain words that
a model's authors added (``<think>``, runs of spaces). We match them ourselves instead of using the
``tokenizers`` library, because whether the text of a control token may become that token depends on
the call and on the position, and the library only has one mutable switch per tokenizer.

A token is a control token if the model's files flag it as special or control, if it begins or ends
a text, or if it is a turn marker (``is_turn_marker``), which some files forget to flag.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import groupby
from operator import itemgetter

from potluck.text.pieces import Notation, piece_bytes
from potluck.types.text import TokenList

_TURN_MARKER = re.compile(
    r"<\|[^|<>\s]+\|?>|<[^|<>\s]+\|>|<(?:start|end)_of_turn>|</?s>|\[/?INST\]"
)
_NO_MATCH = re.compile(r"(?!)")
_SPACES = re.compile(r"\s*")
SEARCHED_CHARACTERS = 64 * 1024
"""Characters per search, which takes at most a few milliseconds."""
_MAX_DEPTH = 48
"""Maximum nesting depth of alternatives in a pattern: Gemma's added tokens include runs of up to 31
spaces, and Python's regular expression compiler recurses about four times per level."""
_LITERAL = "\uffff"
"""Replaces a character that no token may contain; it is a Unicode noncharacter."""


def is_turn_marker(text: str) -> bool:
    """Return whether an added token's text looks like a turn marker of a chat template.

    These are the forms of Llama 3, ChatML and Phi (``<|…|>``), Gemma (``<start_of_turn>``), Gemma 4
    (``<|turn>``, ``<turn|>``), and Llama 2 and Mistral (``<s>``, ``[INST]``).
    """
    return _TURN_MARKER.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """An added token; the flags are those of the ``tokenizers`` library.

    ``control``: decodes to nothing, and is matched only on request. ``lstrip``, ``rstrip``: also
    matches the white space to its left or right. ``single_word``: only matches where no word
    character is adjacent. The library's ``normalized`` is not supported: the original text is
    always searched.
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
        """Later tokens replace earlier ones of the same text or id; empty texts are ignored."""
        self.by_id = {token.token: token for token in tokens}
        self._by_text = {token.text: token for token in self.by_id.values() if token.text}
        self._all = alternatives(self._by_text)
        self._ordinary = alternatives(t.text for t in self._by_text.values() if not t.control)
        self._longest = max(map(len, self._by_text), default=0)

    @property
    def control(self) -> tuple[AddedToken, ...]:
        """Control tokens in ascending order of id."""
        return tuple(t for _, t in sorted(self.by_id.items()) if t.control)

    def split(
        self, text: str, *, parse_control: bool, literal: Sequence[int] = ()
    ) -> Iterator[str | AddedToken]:
        """Yield added tokens and the non-empty stretches of text between them, in order.

        The leftmost token is matched first, and the longest one at each position. No match may
        cover a character whose index is in ``literal``.
        """
        pattern = self._all if parse_control else self._ordinary
        searched = replace_at(text, ((index, _LITERAL) for index in sorted(literal)))
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
    """Return ``pattern.search(text, position)`` for matches of up to ``longest`` characters.

    A single search of a text of megabytes would block all other threads until it ends.
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
    """Return a pattern that matches the longest of ``texts`` at a position; no text may be empty.

    Gemma has 6,500 added tokens, most with the same beginning: a plain alternation would try every
    one of them at each ``<``, which takes seconds for a text of a megabyte.
    """
    each = sorted(set(texts))
    return re.compile(_tree(each, _MAX_DEPTH)) if each else _NO_MATCH


def _tree(texts: Sequence[str], depth: int) -> str:
    """Return a pattern for the longest of ``texts``, which are sorted and distinct.

    Texts with a common prefix share it, with alternatives nested up to ``depth`` levels.
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


def replace_at(text: str, replacements: Iterable[tuple[int, str]]) -> str:
    """Return ``text`` with the characters at some indices replaced.

    Indices are in ascending order; if an index occurs more than once, the first character is used.
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


def list_tokens(
    vocab_size: int,
    piece: Callable[[int], str | None],
    added: Iterable[AddedToken],
    notation: Notation,
    end_tokens: tuple[int, ...],
) -> TokenList:
    """Return the list of the tokens below ``vocab_size``: pieces and added tokens.

    The last stage of a model needs them for grammars (``potluck.grammars``), and has no memory for
    a tokenizer, which takes hundreds of megabytes for a large vocabulary. The result is the same as
    that of ``TextTokenizer`` for the same files.
    """
    by_id = {token.token: token for token in added}
    data = []
    for token in range(vocab_size):
        if (entry := by_id.get(token)) is not None:
            data.append(b"" if entry.control else entry.text.encode("utf-8"))
        else:
            text = piece(token)
            data.append(b"" if text is None else piece_bytes(text, notation))
    control = {token: entry.text for token, entry in by_id.items() if entry.control and entry.text}
    return TokenList(data=data, control=control, end_tokens=end_tokens)
