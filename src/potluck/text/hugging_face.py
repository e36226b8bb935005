"""The tokenizer and the chat template of a model directory in Hugging Face layout.

``tokenizer.json`` is read as the ``tokenizers`` library defines it, with two parts taken out and
done by ``TextTokenizer`` instead: the added tokens, and the space that is put before a text. From
the other files come the tokens that begin and end a text. A directory without ``tokenizer.json``
is read from ``vocab.json`` and ``merges.txt`` where its class is a known byte-level one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.text.added_tokens import AddedToken, is_turn_marker
from potluck.text.bpe import build_byte_level
from potluck.text.chat import ChatTemplate
from potluck.text.pieces import SPACE_MARK, Notation
from potluck.text.pre_tokenizers import BYTE_PRE_TOKENIZERS
from potluck.text.tokenizer import Boundaries, PrefixSpace, TextTokenizer

if TYPE_CHECKING:
    import tokenizers

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
}
"""``tokenizer_class`` → pre-tokenizer, for directories that have only vocab.json and merges.txt."""


def load_tokenizer(directory: Path) -> TextTokenizer:
    """The tokenizer of a model directory.

    Raises ``UnsupportedModelError`` when the directory has no tokenizer that can be read here, and
    ``ModelFileError`` when a file is damaged or contradicts another.
    """
    files = _Directory(path=directory)
    try:
        if files.has("tokenizer.json"):
            return _assemble(_read_tokenizer_json(files), files)
        if files.has("vocab.json") and files.has("merges.txt"):
            return _assemble(_read_vocabulary_and_merges(files), files)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelFileError(
            str(directory), f"the tokenizer files are malformed ({type(error).__name__}: {error})"
        ) from error
    if files.has("tokenizer.model"):
        raise UnsupportedModelError(
            f"{directory} has its tokenizer only as tokenizer.model",
            missing=("tokenizer.json",),
            hint="add tokenizer.json: load and save the tokenizer with a recent transformers",
        )
    raise UnsupportedModelError(
        f"{directory} has no tokenizer",
        missing=("tokenizer.json",),
        hint="copy tokenizer.json and tokenizer_config.json into it",
    )


def load_chat_template(directory: Path) -> ChatTemplate | None:
    """The default chat template of a model directory, or None if there is none.

    As in ``transformers``, a template in a file of its own comes before the one in
    ``tokenizer_config.json``. Raises ``ModelFileError`` when a file is damaged.
    """
    files = _Directory(path=directory)
    source: object = files.text("chat_template.jinja")
    if source is None:
        source = files.json("chat_template.json").get("chat_template")
    if source is None:
        source = files.json("tokenizer_config.json").get("chat_template")
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source if entry}
        source = named.get("default")
    if source is None:
        return None
    if not isinstance(source, str):
        raise ModelFileError(str(directory), "the chat template is not text")
    return ChatTemplate(source=source, special_tokens=_special_texts(files))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Directory:
    """The files of a model directory; those that are absent are empty."""

    path: Path

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def text(self, name: str) -> str | None:
        if not self.has(name):
            return None
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileError(str(self.path / name), f"cannot be read: {error}") from error

    def json(self, name: str) -> dict[str, Any]:
        text = self.text(name)
        if text is None:
            return {}
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ModelFileError(str(self.path / name), f"is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise ModelFileError(str(self.path / name), "is not a JSON object")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What the vocabulary files say. ``added``: entries as in tokenizer.json, by id."""

    model: tokenizers.Tokenizer
    added: dict[int, dict[str, Any]]
    leading: tuple[int, ...]
    notation: Notation
    prefix_space: PrefixSpace
    strips_prefix_space: bool

    def find(self, text: str) -> int | None:
        """The id of the token whose text is ``text``."""
        for token, entry in self.added.items():
            if entry["content"] == text:
                return token
        found: int | None = self.model.token_to_id(text)
        return found


def _read_tokenizer_json(files: _Directory) -> _Parts:
    from tokenizers import Tokenizer

    path = str(files.path / "tokenizer.json")
    try:
        loaded = Tokenizer.from_file(path)
    except Exception as error:  # the library raises nothing more precise
        raise ModelFileError(path, f"is no tokenizer: {error}") from error
    added = {
        token: {
            "content": entry.content,
            "special": entry.special,
            "lstrip": entry.lstrip,
            "rstrip": entry.rstrip,
            "single_word": entry.single_word,
            "normalized": entry.normalized,
        }
        for token, entry in loaded.get_added_tokens_decoder().items()
    }
    notation, strips = _read_decoder(_state(loaded.decoder), path)
    normalizer, pre_tokenizer, prefix_space = _take_prefix_space(
        _state(loaded.normalizer), _state(loaded.pre_tokenizer)
    )
    return _Parts(
        model=_with_steps(loaded, normalizer, pre_tokenizer),
        added=_with_stated_tokens(added, files),
        leading=_leading_tokens(_state(loaded.post_processor)),
        notation=notation,
        prefix_space=prefix_space,
        strips_prefix_space=strips,
    )


def _state(component: Any) -> dict[str, Any]:
    """A part of a tokenizer as tokenizer.json has it, empty if there is none."""
    state: dict[str, Any] = {} if component is None else json.loads(component.__getstate__())
    return state


def _with_steps(
    loaded: tokenizers.Tokenizer, normalizer: dict[str, Any], pre_tokenizer: dict[str, Any]
) -> tokenizers.Tokenizer:
    """The model of ``loaded``, shared and not copied, with these steps and nothing else."""
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


def _read_vocabulary_and_merges(files: _Directory) -> _Parts:
    tokenizer_class = files.json("tokenizer_config.json").get("tokenizer_class")
    pre_tokenizer = _BYTE_LEVEL_CLASSES.get(str(tokenizer_class))
    if pre_tokenizer is None:
        raise UnsupportedModelError(
            f"{files.path} has vocab.json and merges.txt of the class {tokenizer_class}",
            missing=("tokenizer.json",),
            hint="add tokenizer.json: load and save the tokenizer with a recent transformers",
        )
    vocabulary = files.json("vocab.json")
    lines = (files.text("merges.txt") or "").splitlines()
    pairs = (tuple(line.split(" ")) for line in lines if not line.startswith("#version"))
    merges = [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]
    added = _with_stated_tokens(
        {token: {"content": text} for text, token in files.json("added_tokens.json").items()}, files
    )
    return _Parts(
        model=build_byte_level(vocabulary, merges, BYTE_PRE_TOKENIZERS[pre_tokenizer]),
        added=added,
        leading=(),
        notation=Notation.BYTE_LEVEL,
        prefix_space=PrefixSpace.NEVER,
        strips_prefix_space=False,
    )


def _with_stated_tokens(
    added: dict[int, dict[str, Any]], files: _Directory
) -> dict[int, dict[str, Any]]:
    """``added`` with what tokenizer_config.json says: more tokens, and more that are special."""
    stated = files.json("tokenizer_config.json").get("added_tokens_decoder") or {}
    for key, entry in stated.items():
        known = added.get(int(key), {})
        special = bool(entry.get("special") or known.get("special"))
        added[int(key)] = {**entry, **known, "special": special}
    return added


def _assemble(parts: _Parts, files: _Directory) -> TextTokenizer:
    boundaries = _boundaries(parts, files)
    return TextTokenizer(
        model=parts.model,
        added=_added_tokens(parts, boundaries, _flagged_texts(files)),
        notation=parts.notation,
        prefix_space=parts.prefix_space,
        strips_prefix_space=parts.strips_prefix_space,
        vocab_size=max(_model_size(parts.model), *(token + 1 for token in parts.added)),
        boundaries=boundaries,
    )


def _model_size(model: tokenizers.Tokenizer) -> int:
    """One more than the largest id, without a copy of the vocabulary where ids have no gaps."""
    num_pieces = model.get_vocab_size(with_added_tokens=False)
    if all(model.id_to_token(token) is not None for token in range(num_pieces)):
        return num_pieces
    return max(model.get_vocab(with_added_tokens=False).values()) + 1


def _boundaries(parts: _Parts, files: _Directory) -> Boundaries:
    """``tokenizer_config.json`` names bos and eos; the other files list more tokens that end."""
    texts = _special_texts(files)
    bos = parts.find(texts["bos_token"]) if "bos_token" in texts else None
    if bos is None and parts.leading:
        bos = parts.leading[0]
    adds_bos = files.json("tokenizer_config.json").get("add_bos_token")
    bos_tokens = parts.leading
    if adds_bos is not None:
        bos_tokens = (bos,) if adds_bos and bos is not None else ()
    eos: list[int] = []
    for name in ("generation_config.json", "config.json"):
        listed = files.json(name).get("eos_token_id")
        eos += listed if isinstance(listed, list) else [] if listed is None else [listed]
    named = parts.find(texts["eos_token"]) if "eos_token" in texts else None
    if named is not None:
        eos.append(named)
    if any(not isinstance(token, int) for token in eos):
        raise ModelFileError(str(files.path), f"eos_token_id {eos} is not a list of integers")
    return Boundaries(
        bos_token_id=bos, bos_tokens=bos_tokens, eos_token_ids=tuple(dict.fromkeys(eos))
    )


def _added_tokens(
    parts: _Parts, boundaries: Boundaries, flagged: frozenset[str]
) -> Iterator[AddedToken]:
    bounds = {*boundaries.eos_token_ids, *boundaries.bos_tokens}
    if boundaries.bos_token_id is not None:
        bounds.add(boundaries.bos_token_id)
    for token, entry in parts.added.items():
        text = entry["content"]
        control = (
            bool(entry.get("special")) or token in bounds or text in flagged or is_turn_marker(text)
        )
        normalized = bool(entry.get("normalized", False))
        if normalized and not control and parts.notation is Notation.SENTENCE_PIECE:
            # The library would look for it after spaces have become marks.
            text = text.replace(SPACE_MARK, " ")
        yield AddedToken(
            text=text,
            token=token,
            control=control,
            lstrip=bool(entry.get("lstrip", False)),
            rstrip=bool(entry.get("rstrip", False)),
            single_word=bool(entry.get("single_word", False)),
            normalized=normalized,
        )
    for token in sorted(bounds - parts.added.keys()):
        piece = parts.model.id_to_token(token)
        if piece is not None:
            yield AddedToken(text=piece, token=token, control=True)


def _special_texts(files: _Directory) -> dict[str, str]:
    """``bos_token`` … and their texts, the variables that chat templates see."""
    stated = {**files.json("special_tokens_map.json"), **files.json("tokenizer_config.json")}
    texts = {}
    for variable in _SPECIAL_VARIABLES:
        value = stated.get(variable)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            texts[variable] = value
    return texts


def _flagged_texts(files: _Directory) -> frozenset[str]:
    """The texts that the configuration lists as further special tokens."""
    config = files.json("tokenizer_config.json")
    texts = set()
    for key in ("additional_special_tokens", "extra_special_tokens"):
        listed = config.get(key) or ()
        for value in listed.values() if isinstance(listed, dict) else listed:
            texts.add(value["content"] if isinstance(value, dict) else str(value))
    return frozenset(texts)


def _leading_tokens(processor: dict[str, Any]) -> tuple[int, ...]:
    """The tokens that a post-processor puts before a text."""
    kind = processor.get("type")
    if kind == "Sequence":
        return next(filter(None, map(_leading_tokens, processor["processors"])), ())
    if kind in ("BertProcessing", "RobertaProcessing"):
        return (processor["cls"][1],)
    tokens: list[int] = []
    for item in processor.get("single", ()):
        if "SpecialToken" not in item:
            break
        tokens += processor["special_tokens"][item["SpecialToken"]["id"]]["ids"]
    return tuple(tokens)


def _read_decoder(decoder: dict[str, Any], path: str) -> tuple[Notation, bool]:
    """The notation of the pieces, and whether decoding takes off a leading space."""
    steps = [decoder]
    if steps[0].get("type") == "Sequence":
        steps = steps[0]["decoders"]
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return Notation.BYTE_LEVEL, False
    if kinds & {"Metaspace", "ByteFallback"}:
        strips = any(
            (step["type"] == "Strip" and step["content"] == " " and step["start"] > 0)
            or (step["type"] == "Metaspace" and _metaspace_scheme(step) != "never")
            for step in steps
        )
        return Notation.SENTENCE_PIECE, strips
    names = ", ".join(sorted(str(kind) for kind in kinds))
    raise UnsupportedModelError(
        f"{path} has a decoder of the kind {names}",
        missing=(f"decoder {names}",),
        hint="byte-level and SentencePiece tokenizers are supported",
    )


def _metaspace_scheme(step: dict[str, Any]) -> str:
    """``always``, ``first`` or ``never``; the library fills it in for older files."""
    return str(step["prepend_scheme"])


def _take_prefix_space(
    normalizer: dict[str, Any], pre_tokenizer: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], PrefixSpace]:
    """Both steps without whatever puts a space before a text, and where it was put."""
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
