"""Quantizing while loading gives the very model that a file quantized beforehand holds."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines.parity import native_error_limit, rms
from support.engines.pools import pool_of
from support.models.gguf_models import write_gguf_model
from support.models.random_models import RandomModel, make_random_model, random_tokens

from potluck.catalog import ModelDescription, describe_model, open_weights, read_profile
from potluck.engines.backends import native_unit
from potluck.engines.loading import plan_stage
from potluck.engines.loading.load import load_stage
from potluck.types.choices import Quantization
from potluck.types.program import Shard
from potluck.types.quantization import AUTOMATIC
from potluck.types.stage import StageSize
from potluck.types.step import KV_BLOCK_TOKENS, SequenceId, SequenceSlice, Step, StepId
from potluck.types.tensor import TensorFormat

NUM_TOKENS = 24
SIZES = {
    "vocab_size": 760,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "head_dim": 64,
}
EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "norm_topk_prob": True,
}
TOKENIZER = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"]}


ROWS_OF_NO_256 = {"hidden_size": 224, "intermediate_size": 480, "head_dim": 56}
"""Then every mixture is of formats that the package ``gguf`` can encode."""
MIXTURES_OF_NO_256 = {
    Quantization.Q8_0: {"": TensorFormat.Q8_0},
    Quantization.Q6_K: {"": TensorFormat.Q8_0},
    Quantization.Q4_K: {
        "attn_output": TensorFormat.Q5_0,
        "output": TensorFormat.Q8_0,
        "blk.1.attn_v": TensorFormat.Q8_0,
        "blk.1.ffn_down": TensorFormat.Q8_0,
        "": TensorFormat.Q5_0,
    },
    Quantization.Q4_0: {
        "attn_output": TensorFormat.Q4_0,
        "output": TensorFormat.Q8_0,
        "": TensorFormat.Q4_0,
    },
}
"""By parts of GGUF names, the first that matches: what llama.cpp's quantizer would choose for two
layers. Of 2 layers the upper one is among the last eighth, rounded up."""


def make_model(name: str, directory: Path, changes: dict[str, int]) -> RandomModel:
    settings = SIZES | (EXPERTS if name == "qwen3_moe" else {}) | changes
    return make_random_model(name, settings, directory, dtype="bfloat16")


@pytest.fixture(scope="module", params=["llama", "qwen3", "qwen3_moe"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RandomModel:
    return make_model(request.param, tmp_path_factory.mktemp(request.param), {})


@pytest.fixture(scope="module", params=["llama", "qwen3_moe"])
def model_of_no_256(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> RandomModel:
    changes = ROWS_OF_NO_256
    if request.param == "qwen3_moe":
        changes = changes | {"moe_intermediate_size": 96}
    return make_model(request.param, tmp_path_factory.mktemp(request.param), changes)


def logits(description: ModelDescription, quantization: Quantization) -> NDArray[np.float32]:
    size = StageSize(
        context_tokens=NUM_TOKENS,
        num_blocks=-(-NUM_TOKENS // KV_BLOCK_TOKENS),
        max_step_tokens=NUM_TOKENS,
        num_threads=2,
        quantization=quantization,
    )
    plan = plan_stage(read_profile(description), Shard.whole(2), size)
    with closing(open_weights(description, [Shard.whole(2)])) as tensors:
        stage = load_stage(description, tensors, plan, unit=native_unit(), pool=pool_of(2))
    with closing(stage.engine):
        assert stage.engine.weights_bytes == plan.memory.weights_bytes
        parts = tuple(
            SequenceSlice(
                sequence_id=SequenceId(0),
                tokens=(token,),
                start_position=position,
                block_table=tuple(range(size.num_blocks)),
                sample=True,
            )
            for position, token in enumerate(random_tokens(NUM_TOKENS, SIZES["vocab_size"]))
        )
        steps = [Step(step_id=StepId(i), slices=(part,)) for i, part in enumerate(parts)]
        return np.concatenate([stage.engine.logits(step, None) for step in steps])


@pytest.mark.parametrize("quantization", MIXTURES_OF_NO_256)
def test_the_same_bits_as_from_a_file_that_gguf_quantized(
    model_of_no_256: RandomModel, quantization: Quantization, tmp_path: Path
) -> None:
    path, formats = tmp_path / "model.gguf", MIXTURES_OF_NO_256[quantization]
    write_gguf_model(path, model_of_no_256, TOKENIZER, formats=formats)
    from_file = logits(describe_model(str(path)), Quantization.NONE)
    while_loading = logits(describe_model(str(model_of_no_256.directory)), quantization)
    assert np.array_equal(while_loading, from_file)


def test_more_bits_are_nearer_to_the_original(model: RandomModel) -> None:
    description = describe_model(str(model.directory))
    exact = logits(description, Quantization.NONE)
    errors = [
        rms(logits(description, quantization) - exact) / rms(exact)
        for quantization in AUTOMATIC
        if quantization is not Quantization.NONE
    ]
    assert errors == sorted(errors)
    # Weights of 8 bits lose little beside activations, which the engine has in 8 bits anyway.
    assert 0 < errors[0] < 2 * native_error_limit(num_layers=2, is_quantized=True)


def test_what_is_quantized_already_stays_as_it_is(model: RandomModel, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf_model(path, model, TOKENIZER, formats=TensorFormat.Q8_0)
    description = describe_model(str(path))
    as_stored = logits(description, Quantization.NONE)
    assert np.array_equal(logits(description, Quantization.Q4_0), as_stored)
