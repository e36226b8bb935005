"""A head beside a configuration that says the embedding is the head: as transformers has it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.engines.parity import assert_logits_agree
from support.engines.stages import Stages
from support.models.random_models import make_random_model, random_tokens
from support.models.state_dict_source import StateDictSource

from potluck.catalog import describe_model, read_profile
from potluck.engines.loading import plan_stage
from potluck.types.program import Shard
from potluck.types.stage import StageSize

TOLERANCE = 1e-4
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.mark.parametrize("head", ["another", "equal", "none"])
def test_logits_are_those_of_transformers(head: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    make_random_model("llama", {"tie_word_embeddings": False}, tmp_path)
    config_path, weights_path = tmp_path / "config.json", tmp_path / "model.safetensors"
    config_path.write_text(
        json.dumps({**json.loads(config_path.read_text()), "tie_word_embeddings": True})
    )
    state = load_file(weights_path)
    if head == "equal":
        state[HEAD] = state[EMBEDDING].copy()
    elif head == "none":
        del state[HEAD]
    save_file(state, weights_path, metadata={"format": "pt"})

    description = describe_model(str(tmp_path))
    assert description.config.tied_head == (head == "none")
    tokens = random_tokens(30)
    with Stages(description.config, StateDictSource(state), boundaries=[1]) as stages:
        actual = stages.logits_at_all_positions(tokens)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0].numpy()
    assert_logits_agree(actual, expected, tolerance=TOLERANCE)

    if head == "another":
        embedding = np.abs(state[EMBEDDING] - state[HEAD]).max()
        assert embedding > 100 * TOLERANCE, "the embedding would give the same"
    whole = Shard.whole(description.config.num_layers)
    size = StageSize(context_tokens=16, num_blocks=1, max_step_tokens=16, num_threads=1)
    plan = plan_stage(read_profile(description), whole, size)
    assert plan.read_bytes == sum(values.nbytes for values in state.values())
