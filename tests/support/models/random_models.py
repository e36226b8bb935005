"""Small random models, made and computed by transformers: what parity is measured against."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALL: Mapping[str, object] = {
    "vocab_size": 97,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
"""Settings that every family takes, with heads of 24 where ``head_dim`` has no default of its own.
No size is a power of two, so that padding would show; all rows are whole blocks of 32.
"""

LLAMA3_ROPE: Mapping[str, object] = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    # So short that most pairs of a head are scaled or mixed, from the first positions on.
    "original_max_position_embeddings": 32,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomModel:
    """A model in Hugging Face layout in ``directory``, and the same model in memory.

    ``config`` is what stands in ``config.json``; ``state`` has every stored tensor as float32
    under its Hugging Face name (a tied head is not stored).
    """

    directory: Path
    config: Mapping[str, Any]
    state: Mapping[str, NDArray[np.float32]]
    torch_model: Any


def make_random_model(
    family: str,
    settings: Mapping[str, object],
    directory: Path,
    *,
    seed: int = 0,
    dtype: str = "float32",
    max_file_size: str = "5GB",
) -> RandomModel:
    """A model of ``family`` (its ``model_type``) with ``settings`` over ``SMALL``, and its files.

    The weights are drawn so that logits spread over several units: next tokens are then clearly
    decided. ``dtype`` is that of the files and of the model in memory. A small ``max_file_size``
    gives several safetensors files with an index.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    # Two threads on such small matrices mostly wait for each other.
    torch.set_num_threads(1)
    torch_dtype = getattr(torch, dtype)
    config = AutoConfig.for_model(family, **{**SMALL, **settings})
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch_dtype, attn_implementation="eager"
    ).eval()
    generator = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.from_numpy(draw(generator, name, tuple(parameter.shape)))
            parameter.copy_(values.to(torch_dtype))
    model.save_pretrained(directory, max_shard_size=max_file_size)
    stored = {
        stored_name: values
        for name, parameter in model.named_parameters()
        for stored_name, values in _stored(name, parameter.detach().float().numpy())
    }
    return RandomModel(
        directory=directory,
        config=json.loads((directory / "config.json").read_text()),
        state=stored,
        torch_model=model,
    )


def store_state(model: RandomModel, *, max_file_size: str) -> None:
    """Write ``model.state`` to the files and the model in memory, rounded to their type."""
    import torch

    with torch.no_grad():
        for name, parameter in model.torch_model.named_parameters():
            parameter.copy_(torch.from_numpy(_joined(name, parameter.shape, model.state)))
            for stored_name, values in _stored(name, parameter.float().numpy()):
                model.state[stored_name][...] = values
    model.torch_model.save_pretrained(model.directory, max_shard_size=max_file_size)


def load_state(model: RandomModel, state: Mapping[str, NDArray[np.float32]]) -> None:
    """Let the model in memory compute in float32 with other weights."""
    import torch

    model.torch_model.float()
    with torch.no_grad():
        for name, parameter in model.torch_model.named_parameters():
            parameter.copy_(torch.from_numpy(_joined(name, parameter.shape, state)))


def aim_embedding(model: RandomModel, head: NDArray[np.float32], *, strength: float = 4.0) -> None:
    """Turn every token's embedding in ``model.state`` towards the head's row of another token.

    That token is then likeliest by far at most positions, whatever small errors are made before
    the head; the layers still add as much to every logit. One cycle goes through all tokens.
    """
    embedding = model.state["model.embed_tokens.weight"]
    order = np.random.default_rng(9).permutation(len(embedding))
    following = np.empty_like(order)
    following[order] = np.roll(order, -1)
    unit = head[following] / np.linalg.norm(head[following], axis=1, keepdims=True)
    embedding += strength * np.float32(np.sqrt(embedding.shape[1])) * unit


def torch_logits(model: RandomModel, tokens: Sequence[int]) -> NDArray[np.float32]:
    """``[len(tokens), vocab]`` from one forward pass without a cache."""
    import torch

    with torch.no_grad():
        output = model.torch_model(torch.tensor([list(tokens)]), use_cache=False)
    logits: NDArray[np.float32] = output.logits[0].float().numpy()
    return logits


def torch_greedy(
    model: RandomModel, prompt: Sequence[int], num_tokens: int
) -> tuple[list[int], NDArray[np.float32]]:
    """The most likely continuation, and the logits ``[num_tokens, vocab]`` that decided it."""
    tokens, rows = list(prompt), []
    for _ in range(num_tokens):
        rows.append(torch_logits(model, tokens)[-1])
        tokens.append(int(rows[-1].argmax()))
    return tokens[len(prompt) :], np.stack(rows)


def random_tokens(num_tokens: int, vocab_size: int = 97, *, seed: int = 1) -> list[int]:
    """Token ids, the same for the same seed."""
    drawn: list[int] = np.random.default_rng(seed).integers(0, vocab_size, num_tokens).tolist()
    return drawn


def _stored(name: str, values: NDArray[Any]) -> list[tuple[str, NDArray[Any]]]:
    """What a parameter is in files, in the order of its rows.

    In memory a layer's experts are one parameter, ``[experts, rows, columns]``, and each one's gate
    and up are one matrix.
    """
    stem, _, part = name.rpartition(".")
    if not stem.endswith(".experts"):
        return [(name, values)]
    parts = part.removesuffix("_proj").split("_")
    return [
        (f"{stem}.{expert}.{each}_proj.weight", matrix)
        for expert, matrices in enumerate(values)
        for each, matrix in zip(parts, np.split(matrices, len(parts)), strict=True)
    ]


def _joined(
    name: str, shape: Sequence[int], state: Mapping[str, NDArray[np.float32]]
) -> NDArray[np.float32]:
    """The inverse of ``_stored``: a parameter of ``shape`` from what files have."""
    parts = [state[stored_name] for stored_name, _ in _stored(name, np.empty(shape, np.bool_))]
    return np.concatenate(parts).reshape(shape)


def draw(generator: np.random.Generator, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Weights of a parameter, with which logits spread and next tokens are decided."""
    noise = generator.standard_normal(shape)
    if name.endswith(".bias"):
        values = 0.2 * noise
    elif "norm" in name:
        values = 1 + 0.3 * noise
    elif "embed_tokens" in name:
        values = 0.3 * noise
    elif "q_proj" in name or "k_proj" in name:
        values = 1.2 * noise / np.sqrt(shape[-1])  # attention that prefers some positions
    elif "o_proj" in name or "down_proj" in name:
        values = 5 * noise / np.sqrt(shape[-1])  # layers that outweigh the embedding
    elif "lm_head" in name:
        values = 2 * noise / np.sqrt(shape[-1])
    else:
        values = noise / np.sqrt(shape[-1])
    return values.astype(np.float32)
