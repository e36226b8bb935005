"""SentencePiece models: ``tokenizer.model``.

The file is a protocol buffer
(https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto) with the pieces,
their scores, and the preprocessing of text. Both kinds in use are supported: BPE, whose merges
follow from the scores, and Unigram, which segments a text so that the sum of scores is maximal.

User-defined pieces (which are always one token) become added tokens.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.text.bpe import build_sentence_piece, merges_from_scores
from potluck.text.model_directory import read_vocabulary
from potluck.text.pieces import SPACE_MARK, PieceType

if TYPE_CHECKING:
    import tokenizers


_UNIGRAM, _BPE = 1, 2
_KINDS = {3: "words", 4: "characters"}
_TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")
_UNREACHABLE = "\uffff"
"""A Unicode noncharacter that is put before pieces that no text may become."""
_BYTE_SCORE = -1e6
"""Score of byte pieces, which never come from text: below that of any other segmentation."""

_Value: TypeAlias = int | memoryview
"""The value of a field: a number, or the bytes of a text, an inner message or a fixed-width number.
"""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

_MAX_VARINT_BYTES = 10


_NO_CHARACTER = re.compile(r"(?!)")
_SPACES = re.compile(" {2,}")
_LONGEST_SOURCE = 32
"""Maximum length of a key; SentencePiece's built-in tables have keys of up to 18 characters."""


class CharacterMap:
    r"""Replaces characters, using the longest match at each position. Immutable.

    The character map (``precompiled_charsmap``) is a double-array trie as built by Darts
    (https://github.com/s-yata/darts-clone), over the UTF-8 bytes of the text to replace; its values
    are offsets into a table of null-terminated replacements. The ``tokenizers`` library implements
    the same step, but splits the text into graphemes first, and so loses the line feed of ``\r\n``.
    """

    def __init__(self, charsmap: bytes) -> None:
        """Raise ``ValueError`` if ``charsmap`` is malformed."""
        if len(charsmap) < 4:
            raise ValueError("the character map is truncated")
        (num_bytes,) = struct.unpack_from("<I", charsmap)
        if num_bytes % 4 or num_bytes < 1024 or num_bytes > len(charsmap) - 4:
            raise ValueError("the character map has a trie of invalid size")
        self._units = np.frombuffer(charsmap, "<u4", num_bytes // 4, 4)
        self._table = charsmap[4 + num_bytes :]
        self._start = _offset(int(self._units[0]))
        self._begins: dict[str, bool] = {}

    def replace(self, text: str) -> str:
        """Return ``text`` with everything replaced that the map contains."""
        begins = [character for character in set(text) if self._may_begin(character)]
        pattern = re.compile(f"[{re.escape(''.join(begins))}]") if begins else _NO_CHARACTER
        parts = []
        done = 0
        for match in pattern.finditer(text):
            start = match.start()
            if start < done:
                continue
            found = self._longest(text[start : start + _LONGEST_SOURCE])
            if found is not None:
                length, replacement = found
                parts += [text[done:start], replacement]
                done = start + length
        parts.append(text[done:])
        return "".join(parts)

    def _may_begin(self, character: str) -> bool:
        known = self._begins.get(character)
        if known is None:
            known = self._begins[character] = self._walk(self._start, character) is not None
        return known

    def _longest(self, text: str) -> tuple[int, str] | None:
        """Return the length of the longest match in ``text``, and its replacement."""
        found = None
        position = self._start
        for length, character in enumerate(text, 1):
            step = self._walk(position, character)
            if step is None:
                break
            position, has_value = step
            if has_value:
                found = (length, self._replacement(self._unit(position) & 0x7FFFFFFF))
        return found

    def _walk(self, position: int, character: str) -> tuple[int, bool] | None:
        """Follow ``character`` in the trie; return the node, and whether it has a value."""
        unit = 0
        for byte in character.encode("utf-8"):
            unit = self._unit(position ^ byte)
            if unit & 0x800000FF != byte:  # this bit marks units that hold a value
                return None
            position ^= byte ^ _offset(unit)
        return position, bool(unit >> 8 & 1)

    def _unit(self, position: int) -> int:
        return int(self._units[position]) if position < len(self._units) else 0

    def _replacement(self, start: int) -> str:
        end = self._table.find(b"\0", start)
        return self._table[start : max(start, end)].decode("utf-8", errors="replace")


def trim_spaces(text: str) -> str:
    """Return ``text`` with single spaces between words and none at either end."""
    return _SPACES.sub(" ", text.strip(" "))


def _offset(unit: int) -> int:
    """Return the offset of a unit's children, to be applied with exclusive or."""
    return (unit >> 10) << ((unit & 0x200) >> 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieceModel:
    """The contents of a ``tokenizer.model``. ``types`` are values of ``PieceType``.

    ``unknown``, ``bos`` and ``eos`` are ids, or None if the model has none. ``charsmap`` is the
    compiled character map, empty if characters are not replaced.
    """

    pieces: tuple[str, ...]
    scores: tuple[float, ...]
    types: tuple[int, ...]
    is_unigram: bool
    unknown: int | None
    bos: int | None
    eos: int | None
    adds_prefix_space: bool
    removes_extra_spaces: bool
    charsmap: bytes

    def of_type(self, *types: PieceType) -> list[int]:
        """Return the ids of the pieces of these types."""
        return [token for token, kind in enumerate(self.types) if kind in types]


def read_sentence_piece(path: Path) -> SentencePieceModel:
    """Read a ``tokenizer.model``.

    Raises ``ModelFileError`` if it is damaged and ``UnsupportedModelError`` if it preprocesses or
    segments text in an unsupported way.
    """
    data = read_vocabulary(path, "SentencePiece model")
    if _TIKTOKEN_LINE.match(data):
        raise UnsupportedModelError(
            f"{path} is a tiktoken vocabulary, not a SentencePiece model",
            missing=("tokenizer.json",),
            hint="add the tokenizer.json from the model's Hugging Face directory",
        )
    try:
        return _read_model(memoryview(data), path)
    except (struct.error, TypeError, ValueError) as error:
        raise ModelFileError(str(path), f"is not a SentencePiece model: {error}") from error


def build_normalizer(model: SentencePieceModel) -> Callable[[str], str] | None:
    """Return the normalization that precedes everything else, or None if there is none."""
    steps: list[Callable[[str], str]] = []
    if model.charsmap:
        steps.append(CharacterMap(model.charsmap).replace)
    if model.removes_extra_spaces:
        steps.append(trim_spaces)
    if not steps:
        return None
    return lambda text: reduce(lambda each, step: step(each), steps, text)


def build_model(model: SentencePieceModel) -> tokenizers.Tokenizer:
    """Return the library's tokenizer of ``model``, which puts no space before a text.

    User-defined pieces are omitted: they are matched as added tokens.
    """
    if model.is_unigram:
        return _build_unigram(model)
    apart = frozenset(model.of_type(PieceType.CONTROL, PieceType.USER_DEFINED))
    pieces = {piece: token for token, piece in enumerate(model.pieces) if token not in apart}
    mergeable = {
        model.pieces[token]: model.scores[token]
        for token in model.of_type(PieceType.NORMAL, PieceType.UNUSED)
    }
    merges = merges_from_scores(mergeable)
    _require_no_unused(model, merges)
    unknown = None if model.unknown is None else model.pieces[model.unknown]
    return build_sentence_piece(pieces, merges, unknown)


def _build_unigram(model: SentencePieceModel) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, models, normalizers

    if model.unknown is None:
        raise ValueError("the model has no unknown piece")
    entries = []
    for piece, score, kind in zip(model.pieces, model.scores, model.types, strict=True):
        if kind == PieceType.NORMAL:
            entries.append((piece, score))
        elif kind == PieceType.BYTE:
            entries.append((piece, _BYTE_SCORE))
        else:
            entries.append((_UNREACHABLE + piece, 0.0))
    has_bytes = len(model.of_type(PieceType.BYTE)) == 256
    built = Tokenizer(models.Unigram(entries, unk_id=model.unknown, byte_fallback=has_bytes))
    built.normalizer = normalizers.Replace(" ", SPACE_MARK)
    return built


def _require_no_unused(model: SentencePieceModel, merges: Sequence[tuple[str, str]]) -> None:
    """Raise an error for unused pieces, which take part in merges but never become tokens."""
    unused = {model.pieces[token] for token in model.of_type(PieceType.UNUSED)}
    if unused and any(left + right in unused for left, right in merges):
        raise UnsupportedModelError(
            "the SentencePiece model has unused pieces",
            missing=("pieces of type UNUSED",),
            hint="use a model directory with a tokenizer.json",
        )


def _read_model(data: memoryview, path: Path) -> SentencePieceModel:
    pieces: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, _Value] = {}
    normalizer: dict[int, _Value] = {}
    for number, value in message_fields(data):
        if number == 1:
            piece, score, kind = _read_piece(_message(value))
            pieces.append(piece)
            scores.append(score)
            types.append(kind)
        elif number == 2:
            trainer |= dict(message_fields(_message(value)))
        elif number == 3:
            normalizer |= dict(message_fields(_message(value)))
    if not pieces:
        raise ValueError("it has no pieces")
    if len(set(pieces)) < len(pieces):
        raise ValueError("it contains a duplicate piece")
    kind = _number(trainer, 3, _UNIGRAM)
    _require_known(
        path,
        {
            f"segmentation into {_KINDS.get(kind, f'pieces of the kind {kind}')}": kind
            not in (_UNIGRAM, _BPE),
            "spaces as suffixes": bool(_number(trainer, 24, 0)),
            "unescaped spaces": not _number(normalizer, 5, 1),
        },
    )
    unknown = [token for token, kind in enumerate(types) if kind == PieceType.UNKNOWN]
    return SentencePieceModel(
        pieces=tuple(pieces),
        scores=tuple(scores),
        types=tuple(types),
        is_unigram=kind == _UNIGRAM,
        unknown=unknown[0] if unknown else None,
        bos=_token(trainer, 41, 1, types),
        eos=_token(trainer, 42, 2, types),
        adds_prefix_space=bool(_number(normalizer, 3, 1)),
        removes_extra_spaces=bool(_number(normalizer, 4, 1)),
        charsmap=bytes(_message(normalizer.get(2, memoryview(b"")))),
    )


def _read_piece(message: memoryview) -> tuple[str, float, int]:
    text, score, kind = "", 0.0, int(PieceType.NORMAL)
    for number, value in message_fields(message):
        if number == 1:
            text = str(_message(value), "utf-8")
        elif number == 2:
            (score,) = struct.unpack("<f", _message(value))
        elif number == 3 and isinstance(value, int):
            kind = value
    return text, score, kind


def _message(value: _Value) -> memoryview:
    if isinstance(value, int):
        raise ValueError("expected a message but found a number")
    return value


def _number(fields: dict[int, _Value], number: int, default: int) -> int:
    value = fields.get(number, default)
    if not isinstance(value, int):
        raise ValueError(f"the field {number} is not a number")
    return value


def _token(
    fields: dict[int, _Value], number: int, default: int, types: Sequence[int]
) -> int | None:
    """Return an id; -1, which is a very large number here, means that there is none."""
    token = _number(fields, number, default)
    return token if token < len(types) and types[token] == PieceType.CONTROL else None


def _require_known(path: Path, deviations: dict[str, bool]) -> None:
    found = tuple(name for name, is_there in deviations.items() if is_there)
    if found:
        raise UnsupportedModelError(
            f"{path} is a SentencePiece model with unsupported features: {', '.join(found)}",
            missing=found,
            hint="use a model directory with a tokenizer.json",
        )


def message_fields(message: memoryview) -> Iterator[tuple[int, _Value]]:
    """Yield the number and the value of each field of ``message``, in file order.

    Raises ``ValueError`` if it is malformed.

    There is no schema and no generated code: the reader of a message knows the numbers of its
    fields (https://protobuf.dev/programming-guides/encoding/). The reader copies nothing.
    """
    position, end = 0, len(message)
    while position < end:
        key, position = _varint(message, position)
        kind = key & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            length, position = _varint(message, position)
        elif kind == _FIXED32:
            length = 4
        elif kind == _FIXED64:
            length = 8
        else:
            raise ValueError(f"a protocol buffer has a field of unknown wire type {kind}")
        if length > end - position:
            raise ValueError("a protocol buffer ends within a field")
        yield key >> 3, message[position : position + length]
        position += length


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """Return the number at ``position``, and the position after it."""
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if position + index >= len(message):
            raise ValueError("a protocol buffer ends within a varint")
        byte = message[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise ValueError("a protocol buffer has a varint of more than ten bytes")
