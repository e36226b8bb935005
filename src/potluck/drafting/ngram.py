"""Drafts from the text itself: repetitions are copied from their previous occurrence.

Prompt lookup decoding (Saxena 2023), with the longest match of the text's end, as in "SAM Decoding"
(Hu et al. 2024), in the text and in the client's prediction of the answer. It needs no weights, and
a draft takes microseconds.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from potluck.drafting.token_index import TokenIndex
from potluck.types.drafting import Drafter
from potluck.types.sequence import SequenceRequest
from potluck.types.step import SequenceId

_ANCHOR_TOKENS = 3
"""The shortest match that is found however far back in the text it is."""

_SHORT_ANCHOR_TOKENS = 1
"""The shortest match of all. Among many places with the same token only the latest are compared, so
it does not replace longer anchors."""

_PREDICTION_ANCHOR_TOKENS = 2

_NEARBY_TOKENS = 24
"""After the text has left a source, its next token is searched for in this many tokens there."""

_MATCHED_AT_FIRST = 8
"""The beginning of a prediction is trusted like a match of this many tokens."""

_CLASSES = (0, 0, 1, 2, 3, 3, 4, 4, 5)
"""The class of a match by its length; longer ones are in the last."""

_CHANCES = (0.2, 0.4, 0.5, 0.65, 0.8, 0.9)
"""How likely the token after a match of each class is the next one, before a sequence has shown how
it is there. Seen in answers of SmolLM2-135M-Instruct, between free text and editing."""

_WEIGHT = 12
"""The tokens that ``_CHANCES`` count as. Simulated with the costs of drafts on several machines, 6
to 20 differ by a few percent."""

_NOT_SEEN = -1


class NgramDrafts:
    """Makes n-gram drafters. See ``DraftSource``."""

    def open(self, sequence_id: SequenceId, request: SequenceRequest) -> Drafter | None:
        """See ``DraftSource``. Return None for a sequence that gets a single token, or a vector."""
        if not request.may_be_drafted:
            return None
        return NgramDrafter(len(request.prompt_tokens), request.prediction)

    def seconds(self, k: int) -> float:
        """See ``DraftSource``: microseconds, which is negligible compared with a step."""
        return 0.0


class NgramDrafter:
    """Guesses the tokens of one sequence. See ``Drafter``.

    While the text follows a *source* (the prediction, or the text itself further back), the guess
    is what comes next there. When the text leaves it, the longest match is looked for, and whether
    the text goes on in the same source a little later, as it does after a small change.

    How often the token after a match was right is counted by the length of the match, whether it
    was drafted or not: these are the chances of the next guesses.
    """

    def __init__(self, num_prompt_tokens: int, prediction: Sequence[int] = ()) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._text = TokenIndex(_ANCHOR_TOKENS)
        self._short_runs = TokenIndex(_SHORT_ANCHOR_TOKENS)  # of the same text
        self._prediction = TokenIndex(_PREDICTION_ANCHOR_TOKENS)
        self._prediction.extend(prediction)
        self._source = self._prediction
        self._next = 0  # the index in the source of the expected token
        self._matched = _MATCHED_AT_FIRST if prediction else 0
        self._followed_from = num_prompt_tokens  # the source was not changed since
        self._num_right = [0] * len(_CHANCES)
        self._num_seen = [0] * len(_CHANCES)
        self._seen = array("b")  # of each new token: the class, plus its number if it was right

    def chances(self, tokens: Sequence[int], most: int) -> Sequence[float]:
        """See ``Drafter``."""
        self._read(tokens)
        if not self._matched:
            return ()
        if self._source is self._prediction:
            most = min(most, len(self._prediction) - self._next)
        by_class = [
            (num_right + _WEIGHT * chance) / (num_seen + _WEIGHT)
            for num_right, num_seen, chance in zip(
                self._num_right, self._num_seen, _CHANCES, strict=True
            )
        ]
        return [by_class[_class_of(self._matched + count)] for count in range(most)]

    def propose(self, tokens: Sequence[int], k: int) -> Sequence[int]:
        """See ``Drafter``."""
        self._read(tokens)
        return tuple(self._guess(k)) if self._matched else ()

    def truncate(self, num_tokens: int) -> None:
        """See ``Drafter``."""
        num_lost = len(self._text) - num_tokens
        if num_lost <= 0:
            return
        self._text.truncate(num_tokens)
        self._short_runs.truncate(num_tokens)
        for _ in range(min(num_lost, len(self._seen))):
            self._forget(self._seen.pop())
        if num_tokens >= self._followed_from and self._matched:
            self._next -= num_lost
            self._matched -= num_lost
        else:
            self._source, self._next, self._matched = self._prediction, 0, 0

    def close(self) -> None:
        """See ``Drafter``."""

    def _read(self, tokens: Sequence[int]) -> None:
        """Take the new tokens of the text, and find the source that it follows now."""
        start = len(self._text)
        if start < len(tokens):
            self._text.extend(tokens[start:])
            self._short_runs.extend(tokens[start:])
            for place in range(max(start, self._num_prompt_tokens), len(tokens)):
                self._follow(self._text.tokens[place])
        if not self._matched or self._next >= len(self._source):
            self._search()

    def _follow(self, token: int) -> None:
        """Take the next token of the text, and record whether it was the expected one."""
        source = self._source
        if not self._matched or self._next >= len(source):
            self._matched = 0
            self._seen.append(_NOT_SEEN)
            return
        kind = _class_of(self._matched)
        is_right = source.tokens[self._next] == token
        self._num_seen[kind] += 1
        self._num_right[kind] += is_right
        self._seen.append(kind + is_right * len(_CHANCES))
        if is_right:
            self._next += 1
            self._matched += 1
        else:
            self._matched = 0

    def _forget(self, seen: int) -> None:
        if seen != _NOT_SEEN:
            is_right, kind = divmod(seen, len(_CHANCES))
            self._num_seen[kind] -= 1
            self._num_right[kind] -= is_right

    def _search(self) -> None:
        """Find the source that the text follows now. Of equally long matches the first one
        counts.
        """
        text = self._text.tokens
        self._followed_from = len(text)
        best, (following, self._matched) = self._source, self._nearby()
        for source in (self._prediction, self._text):
            place, matched = source.longest_match(text)
            if matched > self._matched:
                best, following, self._matched = source, place, matched
        if self._matched < _ANCHOR_TOKENS:
            place, matched = self._short_runs.longest_match(self._short_runs.tokens)
            if matched > self._matched:
                best, following, self._matched = self._text, place, matched
        if self._matched:
            self._source, self._next = best, following

    def _nearby(self) -> tuple[int, int]:
        """Find where the text continues in the source that it left, as ``longest_match`` does."""
        source, text = self._source.tokens, self._text.tokens
        end = min(len(source) - (source is text), self._next + _NEARBY_TOKENS)
        for place in range(self._next, end):
            if source[place] == text[-1]:
                return place + 1, 1
        return 0, 0

    def _guess(self, count: int) -> Iterator[int]:
        """Yield the next ``count`` tokens of the source.

        At the end of the text itself the guess starts again at its first token, so a text that
        repeats itself goes on repeating. A prediction ends instead.
        """
        tokens, start = self._source.tokens, self._next
        num_left = len(tokens) - start
        if self._source is self._prediction:
            count = min(count, num_left)
        for number in range(count):
            yield tokens[start + number % num_left]


def _class_of(matched: int) -> int:
    return _CLASSES[min(matched, len(_CLASSES) - 1)]
