"""Encode long texts in slices, with exactly the tokens of the whole text.

The ``tokenizers`` library needs about 150 bytes of memory for each byte of text in a call, and
cannot stop once there are more tokens than a context holds. So long texts are encoded in slices.
The library also holds the interpreter's lock in ``encode``, but not in ``encode_batch``, which is
therefore called with a single text.

A slice may end under either of two conditions, so that its tokens are those of the whole text:

- A word of the pre-tokenizer ends there. Its patterns are matched from left to right, so what
  follows the end of one word depends on nothing before it. That a word ends there is read from the
  encoding of a window that begins where the last slice ended and goes on beyond the place, and
  places are only looked for between a letter or digit and a single space or mark that another
  letter or digit follows, where no pattern looks any further.
- Or, where the pre-tokenizer makes one word of the whole text (SentencePiece), no entry of the
  vocabulary has the two characters on both sides next to one another, so no merge joins them.

Tokenizers with steps that are not known to work like this are given the whole text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from potluck.errors import ParameterError
from potluck.text.bpe import is_library_error
from potluck.text.pieces import SPACE_MARK

if TYPE_CHECKING:
    import tokenizers

SLICE_CHARACTERS = 32 * 1024
"""Texts up to this length are encoded in one call, which takes about 15 MiB and 20 to 50 ms."""

MAX_UNDIVIDED_CHARACTERS = 128 * 1024
"""Maximum length of a stretch that cannot be split: encoding it takes up to 90 MiB of memory."""

_LOOKAHEAD_CHARACTERS = 64
_PLACES_TRIED = 16
_PLACE = re.compile(r"(?<=[^\W_])[ \n\t.,;:!?()、。，！？](?=[^\W_])")
_SPACE = re.compile(r"(?<=[^ ▁]) ")

_LOCAL_NORMALIZERS = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase"})
_LOCAL_PRE_TOKENIZERS = frozenset({"Digits", "Punctuation"})
"""The kinds of steps that treat a part of a text as they would in the whole text."""

_Step: TypeAlias = dict[str, Any]
"""A step of preprocessing, as in tokenizer.json."""


class SlicedEncoder:
    """Encodes ordinary text with a ``tokenizers`` model. Thread-safe."""

    def __init__(self, model: tokenizers.Tokenizer) -> None:
        self._model = model
        normalizers = normalizer_steps(model)
        pre_tokenizers = _steps(model.pre_tokenizer, "pretokenizers")
        has_marks = any(map(marks_spaces, (*normalizers, *pre_tokenizers)))
        self._is_one_word = all(_makes_one_word(step, has_marks) for step in pre_tokenizers)
        self._can_slice = all(
            step["type"] in _LOCAL_NORMALIZERS or marks_spaces(step) for step in normalizers
        )
        if self._is_one_word:
            self._can_slice &= has_marks and model.token_to_id(SPACE_MARK) is not None
            # A slice that is a vocabulary entry would become that one token.
            self._can_slice &= not getattr(model.model, "ignore_merges", False)
        else:
            self._can_slice &= all(map(_is_local_pre_tokenizer, pre_tokenizers))
        for attribute in ("continuing_subword_prefix", "end_of_word_suffix"):
            if getattr(model.model, attribute, None):
                self._can_slice = False
        self._joined: frozenset[str] | None = None

    def encode(self, text: str) -> Iterator[list[int]]:
        """Return the token ids of ``text``, encoding it slice by slice.

        Raises ``ParameterError`` for a stretch of over ``MAX_UNDIVIDED_CHARACTERS`` that cannot be
        divided, and for text on which the library fails: with a pattern that backtracks too much or
        a normalizer that is damaged, or because the vocabulary lacks the unknown token.
        """
        start = 0
        length = SLICE_CHARACTERS
        while start < len(text):
            window = text[start : start + length]
            encoding = self._encode_window(window)
            if start + len(window) == len(text):
                yield encoding.ids
                return
            place = self._last_place(window, encoding) if self._can_slice else None
            if place is not None:
                yield encoding.ids[: encoding.char_to_token(place)]
                start += place
                length = SLICE_CHARACTERS
                continue
            if length >= MAX_UNDIVIDED_CHARACTERS:
                raise ParameterError(
                    "text",
                    f"the text has more than {MAX_UNDIVIDED_CHARACTERS} characters in a row "
                    "without a word boundary",
                    hint="break it up with spaces or line breaks, or shorten it",
                )
            length *= 2

    def _encode_window(self, window: str) -> tokenizers.Encoding:
        try:
            return self._model.encode_batch([window], add_special_tokens=False)[0]
        except BaseException as error:
            if not is_library_error(error):
                raise
            raise ParameterError(
                "text",
                f"the model's tokenizer cannot encode the text: {error}",
                hint="change the text, or look for corrected files of the model",
            ) from error

    def _last_place(self, window: str, encoding: tokenizers.Encoding) -> int | None:
        """Return the last index of ``window`` at which a slice may end, if any."""
        end = len(window) - _LOOKAHEAD_CHARACTERS
        for place in _last_matches(_SPACE if self._is_one_word else _PLACE, window, end):
            before, after = encoding.char_to_token(place - 1), encoding.char_to_token(place)
            if before is None or after is None or before >= after:
                continue
            if self._is_one_word:
                if window[place - 1] not in self._joined_to_space():
                    return place
            elif encoding.char_to_word(place - 1) != encoding.char_to_word(place):
                return place
        return None

    def _joined_to_space(self) -> frozenset[str]:
        """Return the characters that precede a space in any vocabulary entry."""
        if self._joined is None:
            found = set()
            for token in range(self._model.get_vocab_size(with_added_tokens=False)):
                piece = self._model.id_to_token(token) or ""
                position = piece.find(SPACE_MARK, 1)
                while position > 0:
                    found.add(piece[position - 1])
                    position = piece.find(SPACE_MARK, position + 1)
            self._joined = frozenset(found)
        return self._joined


def _last_matches(pattern: re.Pattern[str], text: str, end: int) -> Iterator[int]:
    """Yield matches of ``pattern`` before ``end``, last first, a few from each part of the text."""
    part = _LOOKAHEAD_CHARACTERS
    while end > 1:
        start = max(end - part, 1)
        found = [match.start() for match in pattern.finditer(text, start, end)]
        yield from reversed(found[-_PLACES_TRIED:])
        end, part = start, part * 4


def _is_local_pre_tokenizer(step: _Step) -> bool:
    kind = step["type"]
    if kind == "Split":
        # the result would depend on what came before
        return "(?<" not in step["pattern"].get("Regex", "")
    if kind == "ByteLevel":
        return not step["add_prefix_space"]
    if kind == "Metaspace":
        return bool(step["prepend_scheme"] == "never")
    return kind in _LOCAL_PRE_TOKENIZERS


def _makes_one_word(step: _Step, has_marks: bool) -> bool:
    """Return whether the step splits nothing. ``has_marks``: spaces were replaced with marks
    before.
    """
    if step["type"] == "Split":
        return has_marks and bool(step["pattern"] == {"String": " "})
    return bool(
        step["type"] == "Metaspace" and not step["split"] and step["prepend_scheme"] == "never"
    )


def normalizer_steps(model: tokenizers.Tokenizer) -> tuple[_Step, ...]:
    """Return the steps that change the text, in no particular order."""
    return _steps(model.normalizer, "normalizers")


def marks_spaces(step: _Step) -> bool:
    """Return whether the step replaces spaces with SentencePiece's marks."""
    if step["type"] == "Replace":
        return bool(step["pattern"] == {"String": " "} and step["content"] == SPACE_MARK)
    return bool(step["type"] == "Metaspace" and step["replacement"] == SPACE_MARK)


def _steps(component: Any, several: str) -> tuple[_Step, ...]:
    found: list[_Step] = []
    pending = [] if component is None else [json.loads(component.__getstate__())]
    while pending:
        step = pending.pop()
        if step["type"] == "Sequence":
            pending += step[several]
        else:
            found.append(step)
    return tuple(found)
