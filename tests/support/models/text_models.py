"""Small tokenizers that tests train on a few sentences, in the layouts that model files have."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    processors,
    trainers,
)
from tokenizers import pre_tokenizers as pre

SENTENCES = (
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind at all.",
    "Once upon a time there was a little girl who'd lost her red shoes in the garden.",
    "def main(argv: list[str]) -> int:\n    for i in range(10):\n        print(i ** 2)\n    return",
    "从前有一个小女孩，她在花园里丢了红鞋子。天气很好，她很高兴。",
    "Größe, façade, naïve, coöperate; Ελληνικά, русский язык, עברית, العربية, हिन्दी.",
    "😀 smiles, 👩‍👩‍👧 families, 🇩🇪 flags, and 👍🏽 thumbs up! 😀😀😀",
    "Prices: $1,234.56 or 99% of 2024-11-20 at 12:34:56; x=y+z; a==b; #!/bin/sh -e",
    "    indented    with   runs     of spaces\t\tand tabs\r\n\r\n\r\nand line ends   ",
    "======== -------- ........ aaaa abababab hahahaha !!!!!!!! (((((( ))))))",
)

HARD_TEXTS = (
    "",
    " ",
    "     ",
    "a",
    " a",
    "  two leading spaces",
    "trailing spaces   ",
    "line\nline\n\n\nline\r\n\ttab",
    "aaaaaaaaaaaaaaa aaaaaaa ========= -----------  ... hahahahahahaha abababababa",
    "I'M SHE'LL we've don't can't",
    "1234567890 3.14159 x1y22z333 ½ ² Ⅷ ٣",
    "从前有一个小女孩 e\u0301 é 한국어 ไทย ﬁ",
    "😀👩‍👩‍👧🇩🇪👍🏽🧿 \U0001f9ff",
    "nul\x00 bell\x07 esc\x1b[0m del\x7f nbsp\u00a0 zwsp\u200b bom\ufeff ls\u2028 pua\ue000",
    "<s> </s> <unk> <0x41> <|im_start|>user<|im_end|> ▁▁ Ġ Ċ Ã",
    "for (int i = 0; i < n; ++i) { a[i] += b[i]; }  // sum",
)
"""Texts on which tokenizers tend to differ."""

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_SPECIAL = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)
QWEN2_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def train_byte_level(pre_tokenizer: pre.PreTokenizer, vocab_size: int = 700) -> Tokenizer:
    """A byte-level BPE tokenizer without added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    return tokenizer


def regex_byte_level(pattern: str) -> pre.PreTokenizer:
    """The pre-tokenizer of Llama 3, Qwen 2 and the like."""
    return pre.Sequence(
        [
            pre.Split(Regex(pattern), behavior="isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


@cache
def llama3_json() -> str:
    """A tokenizer.json in the style of Llama 3: bos by template, merges ignored for whole words."""
    tokenizer = train_byte_level(regex_byte_level(LLAMA3_SPLIT))
    document = json.loads(tokenizer.to_str())
    document["model"]["ignore_merges"] = True
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.add_special_tokens([*LLAMA3_SPECIAL])
    bos = LLAMA3_SPECIAL[0]
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
            ),
        ]
    )
    return str(tokenizer.to_str())


@cache
def qwen2_json() -> str:
    """A tokenizer.json in the style of Qwen 2: NFC, no bos, words that are no control tokens."""
    tokenizer = train_byte_level(regex_byte_level(QWEN2_SPLIT))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens([*QWEN2_SPECIAL])
    tokenizer.add_tokens(
        [AddedToken(text, normalized=False) for text in ("<think>", "</think>", "<tool_call>")]
    )
    return str(tokenizer.to_str())


def train_sentence_piece(**options: object) -> bytes:
    """A SentencePiece model's file: BPE with Llama 2's settings, but for ``options``."""
    model = io.BytesIO()
    settings: dict[str, Any] = {
        "model_type": "bpe",
        "vocab_size": 700,
        "character_coverage": 0.99,
        "byte_fallback": True,
        "add_dummy_prefix": True,
        "remove_extra_whitespaces": False,
        "normalization_rule_name": "identity",
        "allow_whitespace_only_pieces": True,
        "split_digits": True,
        "user_defined_symbols": [],
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(
            [line for text in SENTENCES * 3 for line in text.splitlines() if line.strip()]
        ),
        model_writer=model,
        **{**settings, **options},
    )
    return model.getvalue()


@cache
def sentence_piece() -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece BPE model with Llama 2's settings."""
    return sentencepiece.SentencePieceProcessor(model_proto=train_sentence_piece())


def sentence_piece_metadata() -> dict[str, object]:
    """``sentence_piece()`` as a GGUF file's metadata."""
    processor = sentence_piece()
    ids = range(processor.get_piece_size())

    def token_type(token: int) -> int:
        if processor.is_unknown(token):
            return 2
        if processor.is_control(token):
            return 3
        return 6 if processor.is_byte(token) else 1

    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [processor.id_to_piece(token) for token in ids],
        "tokenizer.ggml.scores": [processor.get_score(token) for token in ids],
        "tokenizer.ggml.token_type": [token_type(token) for token in ids],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def byte_level_metadata(tokenizer: Tokenizer, name: str, special: Sequence[str]) -> dict[str, Any]:
    """A byte-level tokenizer as a GGUF file's metadata, with control tokens at its end."""
    document = json.loads(tokenizer.to_str())
    vocabulary = document["model"]["vocab"]
    tokens = [*sorted(vocabulary, key=vocabulary.__getitem__), *special]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(vocabulary) + [3] * len(special),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in document["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": len(vocabulary),
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
    }


def llama2_json(*, legacy: bool = False, scheme: str = "first") -> str:
    """``sentence_piece()`` as a tokenizer.json, with Prepend (legacy) or with Metaspace."""
    from transformers.convert_slow_tokenizer import generate_merges

    processor = sentence_piece()
    ids = range(processor.get_piece_size())
    vocabulary = {processor.id_to_piece(token): token for token in ids}
    scores = {
        processor.id_to_piece(t): processor.get_score(t)
        for t in ids
        if not (processor.is_control(t) or processor.is_byte(t) or processor.is_unknown(t))
    }
    merges = generate_merges({p: vocabulary[p] for p in scores}, scores)
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    if legacy:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        tokenizer.pre_tokenizer = pre.Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(
        [AddedToken(text, normalized=False) for text in ("<unk>", "<s>", "</s>")]
    )
    tokenizer.add_special_tokens([AddedToken("<|user|>", normalized=False, rstrip=True)])
    tokenizer.add_special_tokens([AddedToken("<mask>", normalized=False, lstrip=True)])
    tokenizer.add_tokens([AddedToken("<word>", normalized=False)])
    tokenizer.add_tokens([AddedToken("bound", normalized=False, single_word=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return str(tokenizer.to_str())


GEMMA4_SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|tool_response>")
GEMMA4_VISIBLE = ("<|tool_response>",)
"""What llama.cpp's converter writes as words of users, so that its parsers see them."""


@cache
def gemma_json() -> str:
    """A tokenizer.json in the style of Gemma: SentencePiece's pieces, and merges of whole texts."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(
        vocab_size=1100, special_tokens=[*GEMMA4_SPECIAL, "</s>", *bytes_], show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES[:4] * 3 + SENTENCES[6:] * 3, trainer)
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = [
        {**token, "special": True}
        for token in document["added_tokens"]
        if token["content"] in GEMMA4_SPECIAL
    ]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.pre_tokenizer = pre.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 2)]
    )
    return str(tokenizer.to_str())


@cache
def unigram_json() -> str:
    """A Unigram model's tokenizer.json, with characters that it does not know."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", "<s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES[:2] * 3, trainer)
    return str(tokenizer.to_str())


def gemma4_metadata() -> dict[str, Any]:
    """``gemma_json()`` as a GGUF file's metadata."""
    document = json.loads(gemma_json())
    vocabulary = document["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)

    def token_type(text: str) -> int:
        if text in GEMMA4_SPECIAL:
            return 4 if text in GEMMA4_VISIBLE else 3
        return 6 if text.startswith("<0x") else 1

    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-1000.0] * len(tokens),
        "tokenizer.ggml.token_type": [token_type(text) for text in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in document["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
    }


def write_model_directory(
    directory: Path,
    tokenizer_json: str,
    *,
    config: dict[str, object] | None = None,
    files: dict[str, object] | None = None,
) -> Path:
    """A model directory with a tokenizer; ``files`` are written as JSON, or as text if text."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(config or {}), encoding="utf-8")
    for name, content in (files or {}).items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / name).write_text(text, encoding="utf-8")
    return directory
