"""Writes a checkpoint in the Hugging Face layout that plain ``transformers`` loads.

python -m tools.demo_model.export RUN_FOLDER OUT_FOLDER
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from .documents import BOS, CHAT_TEMPLATE, END, EOS, PAD, SPECIAL_TOKENS

Json = Mapping[str, object]


def architecture(tokenizer: Tokenizer) -> Json:
    """Return ``config.json``, with the key names that most programs read."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "rms_norm_eps": 1e-05,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "use_cache": True,
        "bos_token_id": tokenizer.token_to_id(BOS),
        "eos_token_id": tokenizer.token_to_id(EOS),
        "pad_token_id": tokenizer.token_to_id(PAD),
        "torch_dtype": "bfloat16",
    }


def generation(tokenizer: Tokenizer) -> Json:
    """Return ``generation_config.json``: stories end with eos, answers with the end token."""
    return {
        "bos_token_id": tokenizer.token_to_id(BOS),
        "eos_token_id": [tokenizer.token_to_id(EOS), tokenizer.token_to_id(END)],
        "pad_token_id": tokenizer.token_to_id(PAD),
        "do_sample": True,
        "temperature": 0.8,
        "top_p": 0.95,
    }


def tokenizer_settings(tokenizer: Tokenizer) -> Json:
    """Return ``tokenizer_config.json`` with the chat template."""
    named = {BOS, EOS, PAD}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "additional_special_tokens": [token for token in SPECIAL_TOKENS if token not in named],
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(token)): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for token in SPECIAL_TOKENS
        },
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 2048,
        "chat_template": CHAT_TEMPLATE,
    }


def _write(path: Path, content: Json) -> None:
    """Write JSON the way the other tools of this kind do."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def export(run: Path, out: Path) -> None:
    """Write every file of the model but its card."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    tensors = {
        name: tensor.to(torch.bfloat16).contiguous()
        for name, tensor in state["model"].items()
        if name != "lm_head.weight"  # tied: the embedding is the head
    }
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    shutil.copyfile(run / "tokenizer.json", out / "tokenizer.json")
    _write(out / "config.json", architecture(tokenizer))
    _write(out / "generation_config.json", generation(tokenizer))
    _write(out / "tokenizer_config.json", tokenizer_settings(tokenizer))
    _write(
        out / "special_tokens_map.json",
        {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD},
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    export(args.run, args.out)


if __name__ == "__main__":
    main()
