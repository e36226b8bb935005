"""The tokenizer and the chat template in a GGUF file's metadata.

Keys and token types are those of the GGUF specification
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), defaults those of llama.cpp. The
supported kinds of vocabulary are ``gpt2`` (byte-level BPE), ``llama`` (SentencePiece BPE, whose
merges follow from scores) and ``gemma4`` (the same with a list of merges).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.text.added_tokens import AddedToken, is_turn_marker, list_tokens
from potluck.text.bpe import build_byte_level, build_sentence_piece, merges_from_scores
from potluck.text.chat import ChatTemplate
from potluck.text.pieces import Notation, PieceType, piece_bytes
from potluck.text.pre_tokenizers import BYTE_PRE_TOKENIZERS
from potluck.text.tokenizer import Boundaries, PrefixSpace, TextTokenizer
from potluck.types.text import TokenList, is_utf8

if TYPE_CHECKING:
    import tokenizers

_NO_TOKEN = (-1, 2**32 - 1)
"""Values for "no such token": ``LLAMA_TOKEN_NULL`` of llama.cpp, as i32 and as u32."""

_OTHER_FILE = "convert the model again, or use another file"

_ADDED = (PieceType.UNKNOWN, PieceType.CONTROL, PieceType.USER_DEFINED)


METADATA_KEYS = (
    "eos_token_id",
    "eot_token_id",
    "eom_token_id",
    "fim_pad_token_id",
    "fim_rep_token_id",
    "fim_sep_token_id",
)
"""Keys under ``tokenizer.ggml.``: the ends of a text, a turn and a message, and the tokens that
follow a fill-in-the-middle completion."""

_TEXTS = frozenset(
    {
        "<|eot_id|>",  # Llama 3
        "<|eom_id|>",
        "<|im_end|>",  # ChatML: Qwen, SmolLM
        "<|end|>",  # Phi 3
        "<|return|>",  # gpt-oss
        "<|call|>",
        "<|flush|>",  # Solar Open
        "<|calls|>",
        "<end_of_turn>",  # Gemma
        "<|endoftext|>",  # GPT-2, Qwen
        "<|end_of_text|>",  # Llama 3, Granite
        "</s>",  # Llama 2, Mistral
        "<EOT>",  # CodeLlama
        "_<EOT>",
        "[EOT]",  # Kimi K2
        "[EOS]",
        "<end_of_utterance>",  # SmolDocling
        "<eos>",  # Gemma 4
        "<turn|>",
        "<|tool_response>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",  # DeepSeek
        "[e~[",  # MiniMax
    }
)

_TEXTS_WITHOUT_KEY = {
    "fim_pad_token_id": frozenset({"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}),
    "fim_rep_token_id": frozenset(
        {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}
    ),
    "fim_sep_token_id": frozenset({"<|file_sep|>"}),
}
"""Texts that are used only if the file does not have the key."""

_EXCEPTIONS: tuple[tuple[str, frozenset[str]], ...] = (
    ("<|end|>", frozenset({"<|return|>", "<|call|>"})),
    ("<|end|>", frozenset({"<|return|>", "<|calls|>"})),
    ("<|end|>", frozenset({"<|flush|>", "<|call|>"})),
    ("<|end|>", frozenset({"<|flush|>", "<|calls|>"})),
    ("</s>", frozenset({"<|tool_response>"})),
    ("</s>", frozenset({"<eos>", "<end_of_turn>"})),
)
"""Texts that do not end a text in vocabularies with all of certain other end texts: gpt-oss and
Solar Open end every message of an answer with ``<|end|>``, and Gemma has ``</s>`` for HTML
(llama.cpp makes the latter exception for Gemma 4 only)."""


def end_tokens(tokens: Sequence[str], named: dict[str, int]) -> tuple[int, ...]:
    """Return the ids of the tokens that end a text: those in the metadata, then those found by
    text.

    ``named`` contains the ids under those ``METADATA_KEYS`` that the file has.

    Few files name all of them. As in llama.cpp (``llama_vocab::impl::load`` in its
    ``src/llama-vocab.cpp``, ``special_eog_ids``), vocabulary entries with certain texts are added
    to the ids that the metadata names, whatever type the file gives them.
    """
    texts = set(_TEXTS)
    for key, others in _TEXTS_WITHOUT_KEY.items():
        if key not in named:
            texts |= others
    found = [named[key] for key in METADATA_KEYS if key in named]
    found += [token for token, text in enumerate(tokens) if text in texts]
    ends = {tokens[token] for token in found}
    left_out = {text for text, others in _EXCEPTIONS if others <= ends}
    return tuple(token for token in dict.fromkeys(found) if tokens[token] not in left_out)


def build_tokenizer(metadata: Mapping[str, object], *, path: str = "GGUF") -> TextTokenizer:
    """Build the tokenizer that ``metadata`` describes.

    Arrays may be any sequences, and numbers any convertible type; ``path`` is for messages. Raises
    ``UnsupportedModelError`` for an unsupported kind of vocabulary and ``ModelFileError`` for
    inconsistent metadata.
    """
    fields = _Fields(metadata, path)
    build = {"gpt2": _byte_level, "llama": _sentence_piece, "gemma4": _gemma}
    return build[_kind(fields)](fields)


def list_gguf_tokens(metadata: Mapping[str, object], *, path: str = "GGUF") -> TokenList:
    """Return the texts of the tokens in ``metadata``; raises as ``build_tokenizer``."""
    fields = _Fields(metadata, path)
    notation = Notation.BYTE_LEVEL if _kind(fields) == "gpt2" else Notation.SENTENCE_PIECE
    vocabulary = _Vocabulary.read(fields)
    tokens = vocabulary.tokens
    return list_tokens(len(tokens), tokens.__getitem__, vocabulary.added, notation, vocabulary.eos)


def read_chat_template(
    metadata: Mapping[str, object], *, path: str = "GGUF"
) -> ChatTemplate | None:
    """Return the default chat template, or None if there is none.

    Invalid UTF-8 in it becomes U+FFFD.
    """
    source = metadata.get("tokenizer.chat_template")
    tool_source = metadata.get("tokenizer.chat_template.tool_use")
    if source is None:
        return None
    if not isinstance(source, str) or not isinstance(tool_source, str | None):
        raise ModelFileError(path, "tokenizer.chat_template is not a string", hint=_OTHER_FILE)
    fields = _Fields(metadata, path)
    tokens = fields.tokens()
    special = {}
    for variable, key in (
        ("bos_token", "bos_token_id"),
        ("eos_token", "eos_token_id"),
        ("unk_token", "unknown_token_id"),
        ("pad_token", "padding_token_id"),
    ):
        token = fields.token_id(key, len(tokens))
        if token is not None and is_utf8(tokens[token]):
            special[variable] = tokens[token]
    return ChatTemplate(
        source=_with_replacements(source),
        special_tokens=special,
        tool_source=None if tool_source is None else _with_replacements(tool_source),
    )


def read_fill_in_tokens(metadata: Mapping[str, object], *, path: str = "GGUF") -> dict[str, int]:
    """Return the fill-in-the-middle tokens that ``metadata`` names: ``prefix``, ``suffix``,
    ``middle``.
    """
    fields = _Fields(metadata, path)
    num_tokens = len(fields.tokens())
    found: dict[str, int] = {}
    for name, short in (("prefix", "pre"), ("suffix", "suf"), ("middle", "mid")):
        # the second key is that of older files
        for key in (f"fim_{short}_token_id", f"{name}_token_id"):
            token = fields.token_id(key, num_tokens)
            if token is not None:
                found.setdefault(name, token)
    return found


def _with_replacements(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _kind(fields: _Fields) -> str:
    """Return the kind of the vocabulary; raise ``UnsupportedModelError`` for an unsupported one."""
    kind = fields.text("model")
    if kind not in ("gpt2", "llama", "gemma4"):
        raise UnsupportedModelError(
            f"the GGUF file has an unsupported tokenizer: {kind!r}",
            missing=(f"tokenizer.ggml.model = {kind!r}",),
            hint="supported tokenizers: gpt2 (byte-level BPE), llama (SentencePiece) and gemma4",
        )
    # For fine-tuned Gemma models that lack the SentencePiece file.
    return "gemma4" if kind == "gpt2" and fields.text("pre", "default") == "gemma4" else kind


def _byte_level(fields: _Fields) -> TextTokenizer:
    name = fields.text("pre", default="default")
    pre_tokenizer = BYTE_PRE_TOKENIZERS.get(name)
    if pre_tokenizer is None:
        raise UnsupportedModelError(
            f"the GGUF file has a byte-level tokenizer with the unsupported pre-tokenizer {name!r}",
            missing=(f"tokenizer.ggml.pre = {name!r}",),
            hint="use the model's Hugging Face directory, whose tokenizer.json defines the "
            "pre-tokenizer",
        )
    vocabulary = _Vocabulary.read(fields)
    adds_bos = fields.flag("add_bos_token", pre_tokenizer.adds_bos)
    merges = [_split_merge(merge, fields) for merge in fields.strings("merges")]
    return vocabulary.tokenizer(
        build_byte_level(vocabulary.pieces(), merges, pre_tokenizer),
        Notation.BYTE_LEVEL,
        adds_bos=adds_bos,
        adds_eos=fields.flag("add_eos_token", False),
    )


def _sentence_piece(fields: _Fields) -> TextTokenizer:
    vocabulary = _Vocabulary.read(fields)
    scores = fields.numbers("scores")
    if len(scores) < len(vocabulary.tokens):
        raise fields.error(f"{len(scores)} scores for {len(vocabulary.tokens)} tokens")
    pieces = vocabulary.pieces()
    mergeable = {
        piece: scores[token]
        for piece, token in pieces.items()
        if vocabulary.types[token] != PieceType.BYTE
    }
    unknown = next(
        (
            token.text
            for token in vocabulary.added
            if token.text and vocabulary.types[token.token] == PieceType.UNKNOWN
        ),
        None,
    )
    if unknown is not None:
        pieces[unknown] = vocabulary.tokens.index(unknown)
    return vocabulary.tokenizer(
        build_sentence_piece(pieces, merges_from_scores(mergeable), unknown),
        Notation.SENTENCE_PIECE,
        adds_bos=fields.flag("add_bos_token", True),
        adds_eos=fields.flag("add_eos_token", False),
        is_prefixed=fields.flag("add_space_prefix", True),
    )


def _gemma(fields: _Fields) -> TextTokenizer:
    vocabulary = _Vocabulary.read(fields)
    merges = [_split_merge(merge, fields) for merge in fields.strings("merges")]
    return vocabulary.tokenizer(
        build_sentence_piece(vocabulary.pieces(), merges, None),
        Notation.SENTENCE_PIECE,
        adds_bos=True,  # llama.cpp also treats a false value in the file as a mistake.
        adds_eos=False,
    )


def _split_merge(merge: str, fields: _Fields) -> tuple[str, str]:
    space = merge.find(" ", 1)
    if space < 0:
        raise fields.error(f"the merge {merge!r} does not have two pieces")
    return merge[:space], merge[space + 1 :]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vocabulary:
    """The tokens by id, and the properties of some of them.

    If the text of a token is not UTF-8, ``tokens`` has lone surrogates, and ``added`` no text,
    because no user's text can contain it.
    """

    tokens: Sequence[str]
    types: Sequence[int]
    bos: int | None
    eos: tuple[int, ...]
    named_eos: int | None
    added: tuple[AddedToken, ...]

    @classmethod
    def read(cls, fields: _Fields) -> _Vocabulary:
        defaults = {"bos_token_id": 1, "eos_token_id": 2} if _kind(fields) == "llama" else {}
        tokens = fields.tokens()
        types = fields.token_types(len(tokens))
        bos = fields.token_id("bos_token_id", len(tokens), defaults.get("bos_token_id"))
        named = {key: fields.token_id(key, len(tokens), defaults.get(key)) for key in METADATA_KEYS}
        ends = {key: token for key, token in named.items() if token is not None}
        eos = end_tokens(tokens, ends)
        added = tuple(
            AddedToken(
                text=text if is_utf8(text) else "",
                token=token,
                control=kind in (PieceType.UNKNOWN, PieceType.CONTROL)
                or token == bos
                or token in eos
                or is_turn_marker(text),
            )
            for token, (text, kind) in enumerate(zip(tokens, types, strict=True))
            if (kind in _ADDED and (kind != PieceType.USER_DEFINED or is_utf8(text)))
            or token == bos
            or token in eos
        )
        return cls(
            tokens=tokens,
            types=types,
            bos=bos,
            eos=eos,
            named_eos=named["eos_token_id"],
            added=added,
        )

    def pieces(self) -> dict[str, int]:
        """Return the ids of the pieces that text can become by merging."""
        added = {token.token for token in self.added}
        return {
            text: token
            for token, text in enumerate(self.tokens)
            if token not in added and is_utf8(text)
        }

    def tokenizer(
        self,
        model: tokenizers.Tokenizer,
        notation: Notation,
        *,
        adds_bos: bool,
        adds_eos: bool,
        is_prefixed: bool = False,
    ) -> TextTokenizer:
        """Return the tokenizer with ``model``; a space is put before texts if ``is_prefixed``."""
        added = {token.token for token in self.added}
        return TextTokenizer(
            model=model,
            added=self.added,
            notation=notation,
            prefix_space=PrefixSpace.EACH if is_prefixed else PrefixSpace.NEVER,
            strips_prefix_space=is_prefixed,
            vocab_size=len(self.tokens),
            bytes_only={
                token: piece_bytes(text, notation)
                for token, text in enumerate(self.tokens)
                if token not in added and not is_utf8(text)
            },
            boundaries=Boundaries(
                bos_token_id=self.bos,
                bos_tokens=() if self.bos is None or not adds_bos else (self.bos,),
                eos_token_ids=self.eos,
                closing_tokens=() if self.named_eos is None or not adds_eos else (self.named_eos,),
            ),
        )


class _Fields:
    """The metadata under ``tokenizer.ggml.``, validated on access."""

    def __init__(self, metadata: Mapping[str, object], path: str) -> None:
        self._metadata = metadata
        self._path = path

    def error(self, message: str) -> ModelFileError:
        return ModelFileError(self._path, message, hint=_OTHER_FILE)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.error(f"tokenizer.ggml.{key} is not a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        return bool(self._get(key, default))

    def array(self, key: str) -> Iterator[Any]:
        value: Any = self._get(key, None)
        if isinstance(value, str) or not hasattr(value, "__iter__"):
            raise self.error(f"tokenizer.ggml.{key} is not an array")
        return iter(value)

    def strings(self, key: str) -> list[str]:
        values = list(self.array(key))
        if not all(isinstance(value, str) for value in values):
            raise self.error(f"tokenizer.ggml.{key} is not an array of strings")
        return values

    def numbers(self, key: str) -> list[float]:
        try:
            return [float(value) for value in self.array(key)]
        except (TypeError, ValueError) as error:
            raise self.error(f"tokenizer.ggml.{key} is not an array of numbers") from error

    def tokens(self) -> list[str]:
        # Named as in llama.cpp, so that several can exist.
        texts = enumerate(self.strings("tokens"))
        tokens = [text or f"[EMPTY_{token}]" for token, text in texts]
        if len(set(tokens)) != len(tokens):
            raise self.error("tokenizer.ggml.tokens contains a duplicate token")
        return tokens

    def token_types(self, num_tokens: int) -> list[int]:
        if "tokenizer.ggml.token_type" not in self._metadata:
            return [PieceType.NORMAL] * num_tokens
        types = self.numbers("token_type")
        if len(types) < num_tokens:
            raise self.error(f"{len(types)} token types for {num_tokens} tokens")
        if not all(kind.is_integer() for kind in types):
            raise self.error("tokenizer.ggml.token_type has an unknown type")
        return [int(kind) for kind in types[:num_tokens]]

    def token_id(self, key: str, num_tokens: int, default: int | None = None) -> int | None:
        value: Any = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if value is None:
            return None
        try:
            token = int(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise self.error(f"tokenizer.ggml.{key} is not a number") from error
        if token in _NO_TOKEN:
            return None
        if not 0 <= token < num_tokens:
            raise self.error(
                f"tokenizer.ggml.{key} is {token}, but there are only {num_tokens} tokens"
            )
        return token

    def _get(self, key: str, default: object) -> object:
        full_key = f"tokenizer.ggml.{key}"
        value = self._metadata.get(full_key, default)
        if value is None:
            raise UnsupportedModelError(
                f"the GGUF file has no {full_key}",
                missing=(full_key,),
                hint="use a GGUF file that includes its tokenizer",
            )
        return value
