"""A small random model with short convolutions and attention, with the tokenizer of ``demo``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from potluck.catalog.locate import DEMO_DIRECTORY

HIDDEN, WIDTH, VOCABULARY, NUM_HEADS, NUM_KV_HEADS, KERNEL = 64, 96, 2048, 4, 2, 3
CONTEXT = 512
KINDS = ("conv", "full_attention", "conv", "conv", "full_attention")
SLOT_BYTES = 4 * (KERNEL - 1) * HIDDEN * KINDS.count("conv")


def write_small_lfm2(directory: Path) -> str:
    """Write it as transformers does, in float32; return the directory's name."""
    directory.mkdir(parents=True, exist_ok=True)
    for file in DEMO_DIRECTORY.iterdir():
        if file.suffix == ".json" and file.name != "config.json":
            shutil.copyfile(file, directory / file.name)
    config = {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": WIDTH,
        "block_auto_adjust_ff_dim": False,
        "num_hidden_layers": len(KINDS),
        "layer_types": list(KINDS),
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "conv_L_cache": KERNEL,
        "conv_bias": False,
        "max_position_embeddings": CONTEXT,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        "norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (directory / "config.json").write_text(json.dumps(config))
    save_file(_tensors(), directory / "model.safetensors", metadata={"format": "pt"})
    return str(directory)


def _tensors() -> dict[str, NDArray[np.float32]]:
    generator = np.random.default_rng(3)
    tensors: dict[str, NDArray[np.float32]] = {}

    def add(name: str, *shape: int) -> None:
        noise = generator.standard_normal(shape)
        values = 1 + 0.3 * noise if "norm" in name else 2 * noise / np.sqrt(shape[-1])
        tensors[f"model.{name}.weight"] = values.astype(np.float32)

    add("embed_tokens", VOCABULARY, HIDDEN)
    add("embedding_norm", HIDDEN)
    head_dim = HIDDEN // NUM_HEADS
    for layer, kind in enumerate(KINDS):
        stem = f"layers.{layer}"
        add(f"{stem}.operator_norm", HIDDEN)
        add(f"{stem}.ffn_norm", HIDDEN)
        for name, shape in (("w1", (WIDTH, HIDDEN)), ("w3", (WIDTH, HIDDEN))):
            add(f"{stem}.feed_forward.{name}", *shape)
        add(f"{stem}.feed_forward.w2", HIDDEN, WIDTH)
        if kind == "conv":
            add(f"{stem}.conv.in_proj", 3 * HIDDEN, HIDDEN)
            add(f"{stem}.conv.conv", HIDDEN, 1, KERNEL)
            add(f"{stem}.conv.out_proj", HIDDEN, HIDDEN)
            continue
        for name, heads in (
            ("q_proj", NUM_HEADS),
            ("k_proj", NUM_KV_HEADS),
            ("v_proj", NUM_KV_HEADS),
        ):
            add(f"{stem}.self_attn.{name}", heads * head_dim, HIDDEN)
        add(f"{stem}.self_attn.out_proj", HIDDEN, HIDDEN)
        add(f"{stem}.self_attn.q_layernorm", head_dim)
        add(f"{stem}.self_attn.k_layernorm", head_dim)
    return tensors
