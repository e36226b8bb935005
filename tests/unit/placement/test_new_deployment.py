"""The name of a deployment, and its state slots: asked for, by default, and passed on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.models.recurrent_configs import MAMBA, hybrid_config

from potluck.catalog import ModelDescription, describe_model
from potluck.catalog.profile import read_profile
from potluck.cluster.coordinator.starting import stage_spec
from potluck.errors import ParameterError
from potluck.placement.new_deployment import facts_of, name_of, new_record
from potluck.placement.planned import limits_of, size_of
from potluck.placement.stage_reuse import is_of_size
from potluck.types.choices import Objective
from potluck.types.cluster import NodeId, UnitId
from potluck.types.deployment import (
    Deploy,
    DeploymentRecord,
    ModelFacts,
    ModelFingerprint,
    StageRecord,
)
from potluck.types.memory import MemoryPlan

DEMO = describe_model("demo")
HYBRID = replace(DEMO, config=hybrid_config(MAMBA))
NODE = NodeId("a" * 16)


def record(
    description: ModelDescription = HYBRID, name: str = "m", **options: Any
) -> DeploymentRecord:
    request = Deploy(model="m", context_tokens=64, **options)
    facts = ModelFacts(num_layers=description.config.num_layers)
    return new_record(request, description, facts, model_id=name, coordinator=NODE)


def test_facts_are_those_of_the_files() -> None:
    fingerprint = ModelFingerprint(digest="d")
    assert facts_of(DEMO, read_profile(DEMO), fingerprint) == ModelFacts(
        num_layers=DEMO.config.num_layers,
        family="llama",
        num_parameters=7_608_576,
        stored_format="bf16",
        files="safetensors",
        fingerprint=fingerprint,
        sampling_defaults=dict(DEMO.sampling_defaults),
    )


@pytest.mark.parametrize("name", ["", " ", ".", "..", "-rf", "a\nb", "a\x1b[31m", "a\u202eb"])
def test_names_that_would_be_misread_are_refused_and_shown_escaped(name: str) -> None:
    with pytest.raises(ParameterError) as raised:
        record(name=name)
    assert raised.value.message.isprintable()
    assert "--name" in raised.value.hint


def test_a_cache_that_is_too_large_for_a_frame_is_refused_before_anything_is_deployed() -> None:
    with pytest.raises(ParameterError, match="cache"):
        record(DEMO, cache_tokens=2**40)


@pytest.mark.parametrize("name", ["demo", "org/Model-7B:Q4.gguf", "modèle 7", "模型", ".hidden"])
def test_names_of_models_are_accepted(name: str) -> None:
    assert record(name=name).model_id == name


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("/mnt/m.gguf", "m"),
        ("/mnt/Model-1.5B/", "Model-1.5B"),
        ("~/models/m.gguf", "m"),
        ("m.gguf", "m"),
        ("org/model", "org/model"),
        ("org/model:m.gguf", "org/model:m.gguf"),
        ("demo", "demo"),
    ],
)
def test_the_default_name_is_the_same_wherever_the_files_are(model: str, name: str) -> None:
    assert name_of(Deploy(model=model)) == name  # no such path exists on this machine
    assert name_of(Deploy(model=model, model_id="mine")) == "mine"


def test_small_states_are_as_many_as_a_step_has_sequences() -> None:
    assert record().status.num_states == 64


def test_what_is_asked_for_is_taken_before_the_default_of_the_settings() -> None:
    assert record(num_states=5, default_states=9).status.num_states == 5
    assert record(default_states=9).status.num_states == 9


def test_a_model_without_state_has_none_whatever_the_settings_say() -> None:
    assert record(DEMO).status.num_states == 0
    assert record(DEMO, default_states=9).status.num_states == 0
    with pytest.raises(ParameterError, match="have no state slots"):
        record(DEMO, num_states=9)


@pytest.mark.parametrize("wanted", [{"num_streams": 60}, {"objective": Objective.THROUGHPUT}])
def test_streams_that_are_planned_for_can_all_be_live(wanted: dict[str, Any]) -> None:
    num_streams = wanted.get("num_streams", 8)
    needed = -(-num_streams * 4 // 3)
    assert record(**wanted).status.num_states == max(64, needed)
    assert record(default_states=2, **wanted).status.num_states == needed
    with pytest.raises(ParameterError, match=f"{needed} are needed for {num_streams} streams"):
        record(num_states=needed - 1, **wanted)
    assert record(num_states=needed, **wanted).status.num_states == needed


def test_streams_that_nobody_asked_for_need_nothing() -> None:
    assert record(num_states=2).status.num_states == 2


def test_stages_get_as_many_as_the_record_has() -> None:
    memory = MemoryPlan(
        weights=(), cache_bytes=0, rope_bytes=0, scratch_bytes=0, staging_bytes=0, state_bytes=7
    )
    stage = StageRecord(
        node_id=NODE, unit_id=UnitId("u"), start_layer=0, end_layer=3, memory=memory
    )
    placed = record(num_states=5).with_plan(stages=(stage,))
    size = size_of(HYBRID.config, placed)
    spec = stage_spec(placed, size, 0)
    assert (size.num_states, spec.num_states) == (5, 5)
    assert is_of_size(spec.held, size)
    other = size_of(HYBRID.config, record(num_states=6))
    assert not is_of_size(spec.held, other), "its engine has other slots"
    first, second = (limits_of(HYBRID.config, each) for each in (size, other))
    assert second.max_header_bytes > first.max_header_bytes
    again = stage_spec(placed, other, 0)
    assert not spec.is_same_holding(again)
