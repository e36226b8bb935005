"""The built-in model has the shape that the rest of Potluck relies on."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

DEMO = Path(__file__).parents[3] / "src" / "potluck" / "data" / "demo"


def read(name: str) -> dict[str, Any]:
    """One of the model's JSON files."""
    content: dict[str, Any] = json.loads((DEMO / name).read_text(encoding="utf-8"))
    return content


def tensors() -> dict[str, Any]:
    """The header of the safetensors file: eight bytes of length, then JSON."""
    with (DEMO / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header


def test_the_architecture_can_be_cut_and_quantized() -> None:
    config = read("config.json")
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["num_hidden_layers"] >= 12
    assert config["hidden_size"] % 256 == 0
    assert config["intermediate_size"] % 256 == 0
    assert config["num_attention_heads"] * config["head_dim"] == config["hidden_size"]
    assert config["num_attention_heads"] % config["num_key_value_heads"] == 0
    assert config["tie_word_embeddings"] is True


def test_the_weights_are_small_and_all_there() -> None:
    config = read("config.json")
    header = tensors()
    assert (DEMO / "model.safetensors").stat().st_size <= 16_000_000
    assert {entry["dtype"] for entry in header.values()} == {"BF16"}
    assert header["model.embed_tokens.weight"]["shape"] == [2048, 256]
    assert len(header) == 2 + 9 * config["num_hidden_layers"]
    assert "lm_head.weight" not in header


def test_the_tokenizer_fits_the_weights() -> None:
    config, tokenizer = read("config.json"), read("tokenizer.json")
    vocabulary = tokenizer["model"]["vocab"]
    assert len(vocabulary) == config["vocab_size"] == 2048
    settings, generation = read("tokenizer_config.json"), read("generation_config.json")
    assert vocabulary[settings["bos_token"]] == config["bos_token_id"]
    assert vocabulary[settings["eos_token"]] == config["eos_token_id"]
    assert generation["eos_token_id"] == [vocabulary["<|eos|>"], vocabulary["<|end|>"]]
    assert tokenizer["post_processor"]["type"] == "TemplateProcessing"
    assert settings["chat_template"].startswith("{{- bos_token }}")
