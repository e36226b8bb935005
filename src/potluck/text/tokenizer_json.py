"""Read the parts of a ``tokenizer.json``.

The library handles normalization, pre-tokenization and the model with its vocabulary. The added
tokens, the tokens before a text, the space before a text and the conversion of tokens to bytes are
read from the file and handled by ``TextTokenizer``.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.text.bpe import is_library_error
from potluck.text.pieces import SPACE_MARK, Notation
from potluck.text.tokenizer import PrefixSpace

if TYPE_CHECKING:
    import tokenizers


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenParts:
    """The definitions of single tokens in vocabulary files.

    ``model`` has no added tokens. ``added`` are their entries by id, with the keys of
    tokenizer.json. ``leading`` are the tokens put before a text, ``trailing`` those after it.
    ``eos`` ends a text unless the other files name another token.
    """

    model: PieceList | tokenizers.Tokenizer
    added: dict[int, dict[str, Any]]
    notation: Notation
    leading: tuple[int, ...] = ()
    trailing: tuple[int, ...] = ()
    eos: int | None = None

    def find(self, text: str) -> int | None:
        """Return the id of the token whose text is ``text``."""
        for token, entry in self.added.items():
            if entry["content"] == text:
                return token
        found: int | None = self.model.token_to_id(text)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyParts(TokenParts):
    """The contents of vocabulary files, from which ``build`` makes the library's tokenizer.

    ``unknown`` is the id of the unknown token if the tokenizer does not name it;
    ``build_normalizer`` returns what is applied to a text before it, or None.
    """

    build: Callable[[], tokenizers.Tokenizer]
    prefix_space: PrefixSpace = PrefixSpace.NEVER
    strips_prefix_space: bool = False
    unknown: int | None = None
    build_normalizer: Callable[[], Callable[[str], str] | None] = lambda: None


class PieceList:
    """The pieces of a vocabulary, by id and by text, without the library."""

    def __init__(self, ids: dict[str, int]) -> None:
        self._ids = ids

    @cached_property
    def _pieces(self) -> dict[int, str]:
        return {token: piece for piece, token in self._ids.items()}

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a piece."""
        return self._ids.get(token)

    def id_to_token(self, id: int) -> str | None:
        """Return the piece with an id."""
        return self._pieces.get(id)

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return max(self._pieces, default=-1) + 1


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _UnigramModel(msgspec.Struct):
    unk_id: int | None = None


class _UnigramDocument(msgspec.Struct):
    model: _UnigramModel


class _Document(msgspec.Struct):
    """The tokens of the file; the rest, such as merges, is skipped."""

    model: _Model
    added_tokens: list[_AddedToken] | None = None
    decoder: dict[str, Any] | None = None
    post_processor: dict[str, Any] | None = None


def read_token_parts(path: Path) -> TokenParts:
    """Return what a tokenizer.json defines about single tokens.

    The library is not used. Raises as ``read_tokenizer_json``.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            document = msgspec.json.decode(text, type=_Document)
    except (OSError, ValueError, RecursionError) as error:  # includes DecodeError
        raise ModelFileError(str(path), f"is not a valid tokenizer file: {error}") from error
    vocab = document.model.vocab
    if isinstance(vocab, list):
        vocab = {piece: token for token, (piece, _) in enumerate(vocab)}
    return TokenParts(
        model=PieceList(vocab),
        added={
            token.id: {"content": token.content, "special": token.special}
            for token in document.added_tokens or ()
        },
        leading=_tokens_around(document.post_processor or {}, is_after=False),
        trailing=_tokens_around(document.post_processor or {}, is_after=True),
        notation=_read_notation(document.decoder or {}, path),
    )


def read_tokenizer_json(path: Path) -> VocabularyParts:
    """Return the contents of a tokenizer.json.

    Raises ``ModelFileError`` if the library cannot read it and ``UnsupportedModelError`` if its
    decoder is not supported.
    """
    from tokenizers import Tokenizer, models

    try:
        # Not by path: the library requires UTF-8 paths.
        data = path.read_bytes()
        loaded = Tokenizer.from_buffer(data)
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise ModelFileError(str(path), f"is not a valid tokenizer file: {error}") from error
    unknown = None
    if isinstance(loaded.model, models.Unigram):  # the library does not report it for this kind
        unknown = msgspec.json.decode(data, type=_UnigramDocument).model.unk_id
    notation, strips = _read_decoder(_state(loaded.decoder), path)
    normalizer, pre_tokenizer, prefix_space = _take_prefix_space(
        _state(loaded.normalizer), _state(loaded.pre_tokenizer)
    )
    model = _with_steps(loaded, normalizer, pre_tokenizer)
    return VocabularyParts(
        model=model,
        build=lambda: model,
        added={
            token: {
                "content": entry.content,
                "special": entry.special,
                "lstrip": entry.lstrip,
                "rstrip": entry.rstrip,
                "single_word": entry.single_word,
            }
            for token, entry in loaded.get_added_tokens_decoder().items()
        },
        leading=_tokens_around(_state(loaded.post_processor), is_after=False),
        trailing=_tokens_around(_state(loaded.post_processor), is_after=True),
        notation=notation,
        prefix_space=prefix_space,
        strips_prefix_space=strips,
        unknown=unknown,
    )


def _state(component: Any) -> dict[str, Any]:
    """Return a part of a tokenizer as in tokenizer.json, empty if it is absent."""
    state: dict[str, Any] = {} if component is None else json.loads(component.__getstate__())
    return state


def _with_steps(
    loaded: tokenizers.Tokenizer, normalizer: dict[str, Any], pre_tokenizer: dict[str, Any]
) -> tokenizers.Tokenizer:
    """Return a tokenizer with the shared model of ``loaded``, and only these steps."""
    from tokenizers import Tokenizer

    document: dict[str, object] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": normalizer or None,
        "pre_tokenizer": pre_tokenizer or None,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    model = Tokenizer.from_str(json.dumps(document))
    model.model = loaded.model
    return model


def _tokens_around(processor: dict[str, Any], *, is_after: bool) -> tuple[int, ...]:
    """Return the tokens that a post-processor puts before or after a text."""
    kind = processor.get("type")
    if kind == "Sequence":
        found = (_tokens_around(each, is_after=is_after) for each in processor["processors"])
        return next(filter(None, found), ())
    if kind in ("BertProcessing", "RobertaProcessing"):
        return (processor["sep" if is_after else "cls"][1],)
    items = processor.get("single", ())
    tokens: list[int] = []
    for item in reversed(items) if is_after else items:
        if "SpecialToken" not in item:
            break
        ids = processor["special_tokens"][item["SpecialToken"]["id"]]["ids"]
        tokens = [*ids, *tokens] if is_after else [*tokens, *ids]
    return tuple(tokens)


def _read_decoder(decoder: dict[str, Any], path: Path) -> tuple[Notation, bool]:
    """Return the encoding of the pieces, and whether decoding removes a leading space."""
    notation = _read_notation(decoder, path)
    if notation is Notation.BYTE_LEVEL:
        return notation, False
    strips = any(
        (step["type"] == "Strip" and step["content"] == " " and step["start"] > 0)
        or (step["type"] == "Metaspace" and _metaspace_scheme(step) != "never")
        for step in _decoder_steps(decoder)
    )
    return notation, strips


def _decoder_steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder.get("type") == "Sequence":
        return list(decoder["decoders"])
    return [decoder]


def _read_notation(decoder: dict[str, Any], path: Path) -> Notation:
    kinds = {step.get("type") for step in _decoder_steps(decoder)}
    if "ByteLevel" in kinds:
        return Notation.BYTE_LEVEL
    if kinds & {"Metaspace", "ByteFallback"}:
        return Notation.SENTENCE_PIECE
    names = ", ".join(sorted(str(kind) for kind in kinds))
    raise UnsupportedModelError(
        f"{path} has an unsupported decoder: {names}",
        missing=(f"decoder {names}",),
        hint="byte-level and SentencePiece tokenizers are supported",
    )


def _metaspace_scheme(step: dict[str, Any]) -> str:
    """Return ``always``, ``first`` or ``never``; the library fills it in for older files."""
    return str(step["prepend_scheme"])


def _take_prefix_space(
    normalizer: dict[str, Any], pre_tokenizer: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], PrefixSpace]:
    """Return both steps without anything that puts a space before a text, and where it was put."""
    steps = normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]
    kept = [s for s in steps if (s.get("type"), s.get("prepend")) != ("Prepend", SPACE_MARK)]
    if len(kept) < len(steps):
        return {"type": "Sequence", "normalizers": kept}, pre_tokenizer, PrefixSpace.EACH
    if pre_tokenizer.get("type") != "Metaspace":
        return normalizer, pre_tokenizer, PrefixSpace.NEVER
    where = {
        "never": PrefixSpace.NEVER,
        "first": PrefixSpace.FIRST,
        "always": PrefixSpace.EACH_UNLESS_PRESENT,
    }[_metaspace_scheme(pre_tokenizer)]
    return normalizer, {**pre_tokenizer, "prepend_scheme": "never"}, where
