"""The tokenizer and the chat template of a model directory in Hugging Face layout.

The vocabulary is in ``tokenizer.json``, or in ``vocab.json`` and ``merges.txt`` for known
byte-level classes, or in ``tekken.json`` (Mistral), ``tiktoken.model`` (Kimi) or
``tokenizer.model`` (SentencePiece). The other files define the tokens that begin and end a text,
and additional special tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.text import tekken
from potluck.text.added_tokens import AddedToken, is_turn_marker, list_tokens
from potluck.text.bpe import build_byte_level
from potluck.text.chat import ChatTemplate
from potluck.text.mistral_template import mistral_template
from potluck.text.model_directory import ModelDirectory, read_text
from potluck.text.pieces import Notation
from potluck.text.sentence_piece import read_sentence_piece
from potluck.text.tokenizer import Boundaries, TextTokenizer
from potluck.text.tokenizer_json import (
    PieceList,
    TokenParts,
    VocabularyParts,
    read_token_parts,
    read_tokenizer_json,
)
from potluck.text.vendor_tokenizers import (
    SENTENCE_PIECE_FILE,
    TIKTOKEN_FILE,
    piece_texts,
    pre_tokenizer_of,
    read_sentence_piece_vocabulary,
    read_tekken_vocabulary,
    read_tiktoken_vocabulary,
)
from potluck.types.text import TokenList

if TYPE_CHECKING:
    import tokenizers

_MAX_TOKENS = 2**24
"""Maximum size of a vocabulary, as in a model's configuration. No model exceeds 300,000."""

_MAX_SHOWN = 60

TOOL_TEMPLATE_FILE = "additional_chat_templates/tool_use.jinja"
"""File in which ``transformers`` stores a separate template for chats with tools."""

_SPECIAL_VARIABLES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_BYTE_LEVEL_CLASSES = {
    "GPT2Tokenizer": "gpt-2",
    "GPT2TokenizerFast": "gpt-2",
    "Qwen2Tokenizer": "qwen2",
    "Qwen2TokenizerFast": "qwen2",
    "Qwen3_5Tokenizer": "qwen35",
}
"""Maps ``tokenizer_class`` to the pre-tokenizer, for directories with only vocab.json and
merges.txt."""


def load_tokenizer(directory: Path) -> TextTokenizer:
    """Load the tokenizer of a model directory.

    Raises ``UnsupportedModelError`` if the directory has no supported tokenizer, and
    ``ModelFileError`` if a file is damaged or contradicts another.
    """
    files = ModelDirectory.open(directory)
    with _reading(directory):
        if files.has("tokenizer.json"):
            parts = read_tokenizer_json(directory / "tokenizer.json")
        else:
            parts = _read_vocabulary(files, ("vocab.json", "merges.txt"))
        model = parts.build()
        parts = replace(parts, model=model, added=_with_stated_tokens(parts.added, files.config))
        boundaries = _boundaries(parts, files)
        return TextTokenizer(
            model=model,
            added=_added_tokens(parts, boundaries, _flagged_texts(files.config)),
            notation=parts.notation,
            prefix_space=parts.prefix_space,
            strips_prefix_space=parts.strips_prefix_space,
            vocab_size=_vocab_size(parts),
            boundaries=boundaries,
            unknown=parts.unknown,
            normalize=parts.build_normalizer(),
        )


def load_token_list(directory: Path) -> TokenList:
    """Return the texts of the tokens of a model directory, without loading the tokenizer library.

    Raises as ``load_tokenizer``.
    """
    files = ModelDirectory.open(directory)
    with _reading(directory):
        parts: TokenParts
        if files.has("tokenizer.json"):
            parts = read_token_parts(directory / "tokenizer.json")
        else:
            parts = _read_vocabulary(files, ("vocab.json",))
        parts = replace(parts, added=_with_stated_tokens(parts.added, files.config))
        boundaries = _boundaries(parts, files)
        return list_tokens(
            _vocab_size(parts),
            parts.model.id_to_token,
            _added_tokens(parts, boundaries, _flagged_texts(files.config)),
            parts.notation,
            boundaries.eos_token_ids,
        )


@contextmanager
def _reading(directory: Path) -> Iterator[None]:
    """Convert the errors of malformed files to ``ModelFileError``."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelFileError(
            str(directory), f"the tokenizer files are malformed ({type(error).__name__}: {error})"
        ) from error


def load_chat_template(directory: Path) -> ChatTemplate | None:
    """Load the chat template of a model directory, or return None if there is no default one.

    As in ``transformers``, a template in a separate file takes precedence over the one in
    ``tokenizer_config.json``, and one named ``tool_use`` renders chats with tools. Mistral models
    that only have a ``tekken.json`` use the template of its version. Raises ``ModelFileError`` if a
    file is damaged.
    """
    files = ModelDirectory.open(directory)
    source: object = read_text(directory / "chat_template.jinja")
    if source is None:
        source = files.json("chat_template.json").get("chat_template")
    if source is None:
        source = files.json("processor_config.json").get("chat_template")
    if source is None:
        source = files.config.get("chat_template")
    if isinstance(source, list):
        entries = [entry for entry in source if isinstance(entry, dict)]
        source = {str(entry.get("name")): entry.get("template") for entry in entries}
    tool_source: object = read_text(directory / TOOL_TEMPLATE_FILE)
    if isinstance(source, dict):
        tool_source = tool_source or source.get("tool_use")
        source = source.get("default")
    if source is None and files.has(tekken.TEKKEN_FILE) and not files.has("tokenizer.json"):
        file = tekken.read_tekken(directory / tekken.TEKKEN_FILE)
        source = mistral_template(file.version, file.special)
    if source is None:
        return None
    if not isinstance(source, str) or not isinstance(tool_source, str | None):
        raise ModelFileError(str(directory), "the chat template is not a string")
    special = _special_texts(files)
    if not special and files.has(SENTENCE_PIECE_FILE) and not files.has("tokenizer.json"):
        special = piece_texts(read_sentence_piece(directory / SENTENCE_PIECE_FILE))
    return ChatTemplate(source=source, special_tokens=special, tool_source=tool_source)


def _read_vocabulary(files: ModelDirectory, byte_level: Collection[str]) -> VocabularyParts:
    """Return the vocabulary of a directory without a tokenizer.json.

    It is byte-level if the directory has the files ``byte_level``.
    """
    if all(map(files.has, byte_level)):
        return _read_byte_level(files)
    if files.has(tekken.TEKKEN_FILE):
        return read_tekken_vocabulary(files)
    if files.has(TIKTOKEN_FILE):
        return read_tiktoken_vocabulary(files)
    if files.has(SENTENCE_PIECE_FILE):
        return read_sentence_piece_vocabulary(files)
    raise UnsupportedModelError(
        f"{files.path} has no tokenizer",
        missing=("tokenizer.json",),
        hint="copy tokenizer.json and tokenizer_config.json into it",
    )


def _read_byte_level(files: ModelDirectory) -> VocabularyParts:
    pre_tokenizer = pre_tokenizer_of(files, _BYTE_LEVEL_CLASSES, "vocab.json and merges.txt")
    vocabulary = files.json("vocab.json")

    def build() -> tokenizers.Tokenizer:
        lines = (read_text(files.path / "merges.txt") or "").splitlines()
        pairs = (tuple(line.split(" ")) for line in lines if not line.startswith("#version"))
        merges = [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]
        return build_byte_level(vocabulary, merges, pre_tokenizer)

    listed = files.json("added_tokens.json")
    return VocabularyParts(
        model=PieceList(vocabulary),
        build=build,
        added={token: {"content": text} for text, token in listed.items()},
        notation=Notation.BYTE_LEVEL,
    )


def _with_stated_tokens(
    added: dict[int, dict[str, Any]], config: dict[str, Any]
) -> dict[int, dict[str, Any]]:
    """Return ``added`` with the additional tokens and flags of tokenizer_config.json."""
    merged = dict(added)
    for key, entry in (config.get("added_tokens_decoder") or {}).items():
        known = added.get(int(key), {})
        special = bool(entry.get("special") or known.get("special"))
        merged[int(key)] = {**entry, **known, "special": special}
    return merged


def _vocab_size(parts: TokenParts) -> int:
    """Return one more than the largest id. Raise ``ValueError`` if an id is out of range."""
    least, most = min(parts.added, default=0), max(parts.added, default=0)
    size = max(_num_pieces(parts.model), most + 1)
    if least < 0 or size > _MAX_TOKENS:
        wrong = least if least < 0 else size - 1
        raise ValueError(f"a token has the id {wrong}, but ids must be from 0 to {_MAX_TOKENS - 1}")
    return size


def _num_pieces(model: PieceList | tokenizers.Tokenizer) -> int:
    """Return one more than the largest id. A vocabulary whose ids have no gaps is not copied."""
    if isinstance(model, PieceList):
        return model.size
    num_pieces = model.get_vocab_size(with_added_tokens=False)
    if all(model.id_to_token(token) is not None for token in range(num_pieces)):
        return num_pieces
    return max(model.get_vocab(with_added_tokens=False).values()) + 1


def _boundaries(parts: TokenParts, files: ModelDirectory) -> Boundaries:
    """Return how a text begins and ends; bos and eos are in ``tokenizer_config.json``."""
    texts = _special_texts(files)
    bos = parts.find(texts["bos_token"]) if "bos_token" in texts else None
    if bos is None and parts.leading:
        bos = parts.leading[0]
    adds_bos = files.config.get("add_bos_token")
    bos_tokens = parts.leading
    if adds_bos is not None:
        bos_tokens = (bos,) if adds_bos and bos is not None else ()
    eos = _stated_ends(files)
    named = parts.find(texts["eos_token"]) if "eos_token" in texts else parts.eos
    if named is not None:
        eos.append(named)
    closing = parts.trailing
    if not closing and files.config.get("add_eos_token") is True and named is not None:
        closing = (named,)
    return Boundaries(
        bos_token_id=bos,
        bos_tokens=bos_tokens,
        eos_token_ids=tuple(dict.fromkeys(eos)),
        closing_tokens=closing,
    )


def _stated_ends(files: ModelDirectory) -> list[int]:
    """Return the end tokens in ``eos_token_id``, in which -1 means that there is none.

    An id that only the logits have, in a padded vocabulary, also ends a text.
    """
    config = files.json("config.json")
    inner = config.get("text_config")  # of multimodal models
    ends: list[int] = []
    for name, stated in (
        ("generation_config.json", files.json("generation_config.json")),
        ("config.json", config),
        ("config.json", inner or {}),
    ):
        listed = stated.get("eos_token_id")
        if listed is None:
            continue
        for token in listed if isinstance(listed, list) else [listed]:
            if not isinstance(token, int) or isinstance(token, bool):
                problem = "is neither an integer nor a list of integers"
            elif not -1 <= token < _MAX_TOKENS:
                problem = "is not a token id"
            else:
                ends += [token] if token >= 0 else []
                continue
            raise ModelFileError(
                str(files.path / name),
                f"eos_token_id: {repr(token)[:_MAX_SHOWN]} {problem}",
                hint="correct or remove that line",
            )
    return ends


def _added_tokens(
    parts: TokenParts, boundaries: Boundaries, flagged: frozenset[str]
) -> Iterator[AddedToken]:
    bounds = {*boundaries.eos_token_ids, *boundaries.bos_tokens}
    if boundaries.bos_token_id is not None:
        bounds.add(boundaries.bos_token_id)
    for token, entry in parts.added.items():
        text = entry["content"]
        text.encode("utf-8")  # JSON can spell half a surrogate pair
        control = (
            bool(entry.get("special")) or token in bounds or text in flagged or is_turn_marker(text)
        )
        yield AddedToken(
            text=text,
            token=token,
            control=control,
            lstrip=bool(entry.get("lstrip", False)),
            rstrip=bool(entry.get("rstrip", False)),
            single_word=bool(entry.get("single_word", False)),
        )
    for token in sorted(bounds - parts.added.keys()):
        piece = parts.model.id_to_token(token)
        if piece is not None:
            yield AddedToken(text=piece, token=token, control=True)


def _special_texts(files: ModelDirectory) -> dict[str, str]:
    """Return the texts of ``bos_token`` …, which chat templates see as variables."""
    stated = {**files.json("special_tokens_map.json"), **files.config}
    if not stated and files.has(tekken.TEKKEN_FILE):
        stated = {"bos_token": tekken.BOS, "eos_token": tekken.EOS, "unk_token": tekken.UNKNOWN}
    texts = {}
    for variable in _SPECIAL_VARIABLES:
        value = stated.get(variable)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            texts[variable] = value
    return texts


def _flagged_texts(config: dict[str, Any]) -> frozenset[str]:
    """Return the texts that the configuration lists as additional special tokens."""
    texts = set()
    for key in ("additional_special_tokens", "extra_special_tokens"):
        listed = config.get(key) or ()
        for value in listed.values() if isinstance(listed, dict) else listed:
            texts.add(value["content"] if isinstance(value, dict) else str(value))
    return frozenset(texts)
