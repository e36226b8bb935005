"""The demo model's tokenizer with random weights of any size: for tests of memory, not of words."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import numpy as np

from potluck.catalog.locate import DEMO_DIRECTORY


def make_large_model(directory: Path, *, num_layers: int, hidden: int = 512) -> int:
    """A Llama in bf16, written tensor by tensor; returns the bytes of its safetensors file.

    A layer has 10 MB at a hidden size of 512, four times as many at twice that.
    """
    config = json.loads((DEMO_DIRECTORY / "config.json").read_text())
    num_heads, inner = hidden // 64, 8 * hidden
    config |= {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_heads // 2,
    }
    shapes: dict[str, list[int]] = {
        "model.embed_tokens.weight": [config["vocab_size"], hidden],
        "model.norm.weight": [hidden],
    }
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": [hidden],
            f"{prefix}.post_attention_layernorm.weight": [hidden],
            f"{prefix}.self_attn.q_proj.weight": [hidden, hidden],
            f"{prefix}.self_attn.k_proj.weight": [hidden // 2, hidden],
            f"{prefix}.self_attn.v_proj.weight": [hidden // 2, hidden],
            f"{prefix}.self_attn.o_proj.weight": [hidden, hidden],
            f"{prefix}.mlp.gate_proj.weight": [inner, hidden],
            f"{prefix}.mlp.up_proj.weight": [inner, hidden],
            f"{prefix}.mlp.down_proj.weight": [hidden, inner],
        }
    header: dict[str, object] = {}
    offset = 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    directory.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copyfile(DEMO_DIRECTORY / name, directory / name)
    (directory / "config.json").write_text(json.dumps(config))
    text = json.dumps(header).encode()
    generator = np.random.default_rng(0)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            if len(shape) == 1:
                values = np.ones(shape, dtype=np.float32)
            else:
                values = generator.standard_normal(shape, dtype=np.float32) / shape[1] ** 0.5
            file.write((values.view(np.uint32) >> 16).astype("<u2").tobytes())
        return file.tell()
