"""Texts and grammars over a vocabulary of single bytes and control tokens."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np

from potluck.grammars.matchers import Matcher, Matchers
from potluck.grammars.vocabulary import Vocabulary
from potluck.types.text import TokenList

_END = 256
_MANY = 60
_MAX_DRAWN = 4000


class GrammarTexts:
    """Says which texts a grammar allows, and writes some."""

    def __init__(self, control_tokens: Collection[str] = ()) -> None:
        self._control = sorted(control_tokens, key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, self._control)) or "(?!)")
        data = [*(bytes([byte]) for byte in range(256)), b"", *(b"" for _ in self._control)]
        control = {_END: "<|end of text|>"}
        control |= {_END + 1 + index: text for index, text in enumerate(self._control)}
        tokens = TokenList(data=data, control=control, end_tokens=(_END,))
        self._matchers = Matchers(Vocabulary(tokens, len(data)))

    def tokens(self, text: str) -> list[int]:
        """``text`` with its control tokens."""
        result: list[int] = []
        position = 0
        for match in self._marks.finditer(text):
            result += text[position : match.start()].encode()
            result.append(_END + 1 + self._control.index(match[0]))
            position = match.end()
        return result + list(text[position:].encode())

    def allows(self, grammar: str, text: str) -> bool:
        """Whether ``text`` is a whole text of ``grammar``."""
        matcher = self._matchers.take(grammar)
        is_allowed = matcher.accept_all(self.tokens(text)) and matcher.is_accepting
        self._matchers.give_back(matcher)
        return is_allowed

    def rejected_at(self, grammar: str, text: str) -> str:
        """What of ``text`` a grammar does not allow any more; for messages."""
        matcher = self._matchers.take(grammar)
        tokens = self.tokens(text)
        for index, token in enumerate(tokens):
            if not matcher.accept(token):
                return self.text(tokens[:index]) + " | " + self.text(tokens[index:])
        return text + (" |" if not matcher.is_accepting else "")

    def draw(self, grammar: str, source: random.Random, marks: Sequence[str] = ()) -> str:
        """A text of ``grammar`` drawn by its masks, which soon takes to writing ``marks``."""
        matcher = self._matchers.take(grammar)
        tokens: list[int] = []
        while len(tokens) < _MAX_DRAWN:
            matcher._spent_seconds = 0.0  # on busy cores a text may take longer than is allowed
            allowed = self._allowed(matcher)
            if allowed == [_END] or (
                _END in allowed and (len(tokens) > _MANY or source.random() < 0.2)
            ):
                break
            if len(tokens) > _MANY or source.random() < 0.3:
                mark = self._mark(matcher, source, marks)
                if mark:
                    tokens += mark
                    continue
            plain = [each for each in allowed if 32 <= each < 127 or each > _END]
            token = source.choice(plain or [each for each in allowed if each != _END])
            assert matcher.accept(token)
            tokens.append(token)
        assert matcher.is_accepting, self.text(tokens)
        self._matchers.give_back(matcher)
        return self.text(tokens)

    def _mark(self, matcher: Matcher, source: random.Random, marks: Sequence[str]) -> list[int]:
        """The tokens of one of ``marks`` that may come next, which are accepted."""
        for mark in source.sample(marks, len(marks)):
            tokens = self.tokens(mark)
            if len(matcher.masks_after(tokens, matcher.mask())) == len(tokens):
                assert matcher.accept_all(tokens)
                return tokens
        return []

    def text(self, tokens: Sequence[int]) -> str:
        pieces = (
            self._control[token - _END - 1].encode() if token > _END else bytes([token])
            for token in tokens
        )
        return b"".join(pieces).decode("utf-8", "replace")

    def _allowed(self, matcher: Matcher) -> list[int]:
        bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
        return [int(token) for token in np.flatnonzero(bits)]


@lru_cache
def grammar_texts(control_tokens: frozenset[str] = frozenset()) -> GrammarTexts:
    return GrammarTexts(control_tokens)
