"""Convert sampled tokens to text incrementally.

A token may end in the middle of a character, and a text may end in the middle of a stop string. In
both cases text is held back until it is unambiguous, so that emitted text is never wrong.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Collection, Sequence

from potluck.errors import ParameterError
from potluck.types.text import Tokenizer


class StopMatcher:
    """Finds the first of several strings in a text that arrives in pieces, in linear time.

    The first string is the one that ends first; among several that end together, the longest. So
    the result does not depend on how the text is split. This is the automaton of Aho and Corasick
    (1975); the depth of its state is the length of the text's longest suffix that may still become
    a stop string.
    """

    def __init__(self, stop_strings: Sequence[str]) -> None:
        if any(not stop for stop in stop_strings):
            raise ParameterError(
                "stop", "a stop string is empty", hint="remove it, or use a non-empty string"
            )
        self._edges: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._found: list[str | None] = [None]
        for stop in stop_strings:
            self._insert(stop)
        self._fallback = self._link()
        self._state = 0
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Process more text; return the text that is not part of a stop string, and the match if
        any.

        After a match, ``push`` must not be called again.
        """
        if len(self._edges) == 1:
            return text, None
        held = self._held + text
        for index in range(len(self._held), len(held)):
            self._state = self._next(self._state, held[index])
            found = self._found[self._state]
            if found is not None:
                self._held = ""
                return held[: index + 1 - len(found)], found
        cut = len(held) - self._depth[self._state]
        self._held = held[cut:]
        return held[:cut], None

    def flush(self) -> str:
        """Return the text held back, at the end of the text."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self._edges[state]:
                self._edges[state][character] = len(self._edges)
                self._edges.append({})
                self._depth.append(self._depth[state] + 1)
                self._found.append(None)
            state = self._edges[state][character]
        self._found[state] = stop

    def _link(self) -> list[int]:
        """Compute, for each state, the state of the longest proper suffix of its text."""
        fallback = [0] * len(self._edges)
        queue = deque(self._edges[0].values())
        while queue:
            state = queue.popleft()
            if self._found[state] is None:
                self._found[state] = self._found[fallback[state]]
            for character, child in self._edges[state].items():
                other = fallback[state]
                while other and character not in self._edges[other]:
                    other = fallback[other]
                fallback[child] = self._edges[other].get(character, 0)
                queue.append(child)
        return fallback

    def _next(self, state: int, character: str) -> int:
        while state and character not in self._edges[state]:
            state = self._fallback[state]
        return self._edges[state].get(character, 0)


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """Return the text of a single token, which may be a control token."""
    return tokenizer.control_text(token) or tokenizer.token_bytes(token).decode(errors="replace")


class StreamingDetokenizer:
    """Converts the tokens of one output to text, one at a time. Use from one thread.

    An output continues a prompt, so its first token keeps its leading space. With ``starts_text``
    the tokens are a whole text (the prompt was empty except for the token that begins it), and the
    space that the tokenizer puts before a text is removed, as by ``Tokenizer.decode``.

    Control tokens are dropped, except those whose texts are in ``visible``: parsers of a model's
    output need these.

    All pieces together make up the text up to the first stop string, or all of it. Invalid UTF-8
    becomes U+FFFD. Raises ``ParameterError`` for an empty stop string.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop_strings: Sequence[str] = (),
        starts_text: bool = False,
        visible: Collection[str] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._matcher = StopMatcher(stop_strings)
        self._visible = frozenset(visible)
        self._strip_space = starts_text and tokenizer.strips_prefix_space
        self.stopped_by: str | None = None
        """The stop string that ended the text, if any; no text follows it."""
        self.num_characters = 0
        """Characters decoded so far, including those held back: the offset of the next token's
        text."""

    def push(self, token: int) -> str:
        """Return the text that this token makes unambiguous; often empty."""
        data = self._tokenizer.token_bytes(token)
        if self._strip_space and data:
            data = data.removeprefix(b" ")
            self._strip_space = False
        elif not data and self._visible:
            text = self._tokenizer.control_text(token)
            if text in self._visible:
                data = text.encode()
        return self._emit(self._decoder.decode(data))

    def flush(self) -> str:
        """Return the text held back, at the end of the output. It may complete a stop string."""
        text = self._emit(self._decoder.decode(b"", final=True))
        return text if self.stopped_by is not None else text + self._matcher.flush()

    def _emit(self, text: str) -> str:
        if self.stopped_by is not None:
            return ""
        self.num_characters += len(text)
        text, self.stopped_by = self._matcher.push(text)
        return text
