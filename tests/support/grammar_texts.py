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


class GrammarTexts:
    """Says which texts a grammar allows, and writes some."""

    def __init__(self, control_tokens: Collection[str] = ()) -> None:
        self._control = sorted(control_tokens, key=len, reverse=True)
        data = [*(bytes([byte]) for byte in range(256)), b"", *(b"" for _ in self._control)]
        control = {_END: "<|end of text|>"}
        control |= {_END + 1 + index: text for index, text in enumerate(self._control)}
        tokens = TokenList(data=data, control=control, end_tokens=(_END,))
        self._matchers = Matchers(Vocabulary(tokens, len(data)))

    def tokens(self, text: str) -> list[int]:
        """``text`` with its control tokens."""
        pattern = "|".join(map(re.escape, self._control)) or "(?!)"
        result: list[int] = []
        position = 0
        for match in re.finditer(pattern, text):
            result += text[position : match.start()].encode()
            result.append(_END + 1 + self._control.index(match[0]))
            position = match.end()
        return result + list(text[position:].encode())

    def allows(self, grammar: str, text: str) -> bool:
        """Whether ``text`` is a whole text of ``grammar``."""
        matcher = self._matchers.take(grammar)
        return matcher.accept_all(self.tokens(text)) and matcher.is_accepting

    def rejected_at(self, grammar: str, text: str) -> str:
        """What of ``text`` a grammar does not allow any more; for messages."""
        matcher = self._matchers.take(grammar)
        tokens = self.tokens(text)
        for index, token in enumerate(tokens):
            if not matcher.accept(token):
                return self.text(tokens[:index]) + " | " + self.text(tokens[index:])
        return text + (" |" if not matcher.is_accepting else "")

    def draw(self, grammar: str, source: random.Random, max_tokens: int = 3000) -> str:
        """A text of ``grammar`` drawn by its masks, ended as soon as may be after a while."""
        matcher = self._matchers.take(grammar)
        tokens: list[int] = []
        while len(tokens) < max_tokens:
            allowed = self._allowed(matcher)
            if _END in allowed and (len(tokens) > 100 or source.random() < 0.1):
                break
            token = self._one(allowed, source, is_short=len(tokens) > 100)
            if token == _END:
                break
            assert matcher.accept(token)
            tokens.append(token)
        assert matcher.is_accepting, self.text(tokens)
        return self.text(tokens)

    def text(self, tokens: Sequence[int]) -> str:
        pieces = (
            self._control[token - _END - 1].encode() if token > _END else bytes([token])
            for token in tokens
        )
        return b"".join(pieces).decode("utf-8", "replace")

    def _allowed(self, matcher: Matcher) -> list[int]:
        bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
        return [int(token) for token in np.flatnonzero(bits)]

    def _one(self, allowed: list[int], source: random.Random, *, is_short: bool) -> int:
        """One of ``allowed``; often one of those that end something."""
        ends = [each for each in allowed if each > _END or chr(each) in '"}])<\n']
        if ends and (is_short or source.random() < 0.3):
            return source.choice(ends)
        plain = [each for each in allowed if 32 <= each < 127 or each > _END]
        return source.choice(plain or allowed)


@lru_cache
def grammar_texts(control_tokens: frozenset[str] = frozenset()) -> GrammarTexts:
    return GrammarTexts(control_tokens)
