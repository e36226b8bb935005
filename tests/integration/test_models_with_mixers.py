"""Whole models with Mamba-2 mixers: alone, in turn with other layers, and beside attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.models.mamba_models import make_mamba_model
from support.models.random_models import RandomModel, torch_greedy
from support.models.text_models import qwen2_json, write_model_directory

from potluck import Model
from potluck.types.choices import Quantization

SIZES: Mapping[str, Any] = {
    "vocab_size": 760,
    "hidden_size": 256,
    "intermediate_size": 512,
    "head_dim": 64,
}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "mamba2": {"num_heads": 8, "n_groups": 2, "state_size": 32},
    "nemotron_h": {
        "num_hidden_layers": None,
        "hybrid_override_pattern": "ME*M-",
        "mamba_num_heads": 8,
        "mamba_head_dim": 64,
        "n_groups": 2,
        "ssm_state_size": 32,
        "n_routed_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 256,
        "moe_shared_expert_intermediate_size": 256,
    },
    "falcon_h1": {
        "mamba_d_ssm": 512,
        "mamba_n_heads": 8,
        "mamba_d_state": 32,
        "key_multiplier": 0.4,
        "mlp_multipliers": [0.9, 0.6],
        "ssm_multipliers": [0.35, 0.25, 0.4, 0.5, 0.3],
        "ssm_out_multiplier": 0.6,
    },
}
PROMPT = [5, 9, 30, 77, 12, 40, 41, 42] * 5


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RandomModel]:
    made: dict[str, RandomModel] = {}

    def make(family: str) -> RandomModel:
        if family not in made:
            directory = tmp_path_factory.mktemp(family) / "model"
            write_model_directory(directory, qwen2_json())
            made[family] = make_mamba_model(
                family, {**SIZES, **SETTINGS[family]}, directory, seed=2
            )
        return made[family]

    return make


def logprobs(model: Model) -> list[tuple[int, float | None]]:
    generation = model.generate(
        PROMPT, max_tokens=12, temperature=0.0, logprobs=True, ignore_eos=True
    )
    return [(piece.token, piece.logprob) for piece in generation.result().pieces]


@pytest.mark.parametrize("family", SETTINGS)
@pytest.mark.parametrize("quantization", [Quantization.NONE, Quantization.Q4_K])
def test_stages_and_mapped_weights_change_nothing(
    family: str,
    quantization: Quantization,
    models: Callable[[str], RandomModel],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = models(family)
    with Model.open(str(model.directory), num_threads=2, quantization=quantization) as loaded:
        expected = logprobs(loaded)
    if quantization is Quantization.NONE:
        assert [token for token, _ in expected] == torch_greedy(model, PROMPT, 12)[0]
    for mmap in (False, True):
        with Model.open(
            str(model.directory), stages=3, num_threads=1, mmap=mmap, quantization=quantization
        ) as loaded:
            assert logprobs(loaded) == expected


@pytest.mark.parametrize("family", SETTINGS)
def test_a_turn_that_goes_on_computes_what_is_new(
    family: str, models: Callable[[str], RandomModel]
) -> None:
    model = models(family)
    with Model.open(str(model.directory), num_threads=1) as loaded:
        answer = [token for token, _ in logprobs(loaded)]
        prompt = [*PROMPT, *answer, 7, 8, 9]
        result = loaded.generate(prompt, max_tokens=8, temperature=0.0, ignore_eos=True).result()
    assert [piece.token for piece in result.pieces] == torch_greedy(model, prompt, 8)[0]
    assert result.timings.num_cached_tokens > 0


def test_a_model_of_mixers_alone_needs_no_more_memory_for_a_longer_context(
    models: Callable[[str], RandomModel],
) -> None:
    needed = []
    for context_tokens in (512, 65_536):
        with Model.open(str(models("mamba2").directory), context_tokens=context_tokens) as loaded:
            (stage,) = loaded.plan.stages
            needed.append((stage.memory.cache_bytes, stage.memory.rope_bytes))
    assert needed == [(0, 0), (0, 0)]
