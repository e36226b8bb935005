"""The tensors of published Gemma models: what Potluck reads, and what ``transformers`` has.

No weights are made: ``transformers`` builds the models on its device without memory.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from support.models.gemma_configs import PUBLISHED

from potluck.models.names import FileKind
from potluck.models.program import weight_specs
from potluck.models.registry import (
    config_from_hugging_face,
    refuse_unread_tensors,
    stored_weights,
    with_stored_head,
)
from potluck.types.program import Shard


def tensors_of_transformers(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor that a file of the model has, by its name in memory."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    values = {key: copy.deepcopy(value) for key, value in config.items() if key != "model_type"}
    made = AutoConfig.for_model(config["model_type"], **values)
    maker: Any = AutoModelForImageTextToText if "text_config" in config else AutoModelForCausalLM
    with torch.device("meta"):
        model = maker.from_config(made)
    buffers = [each for each in model.named_buffers() if each[0].endswith("layer_scalar")]
    return {name: tuple(each.shape) for name, each in (*model.named_parameters(), *buffers)}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_tensor_of_a_published_model(name: str) -> None:
    expected = tensors_of_transformers(PUBLISHED[name])
    config = with_stored_head(
        config_from_hugging_face(PUBLISHED[name]), expected, FileKind.HUGGING_FACE
    )
    refuse_unread_tensors(config, expected, FileKind.HUGGING_FACE)
    specs = weight_specs(config, Shard.whole(config.num_layers))
    fused: dict[str, list[tuple[int, ...]]] = {}
    for spec, stored in zip(
        specs, stored_weights(config, specs, FileKind.HUGGING_FACE), strict=True
    ):
        (stored_name,) = stored.stored_names
        if stored.row_range is None:
            assert expected[stored_name] == spec.shape, spec.name
        else:
            fused.setdefault(stored_name, []).append(spec.shape)
    for stored_name, shapes in fused.items():
        rows = sum(shape[-2] for shape in shapes)
        assert expected[stored_name] == (shapes[0][0], rows, shapes[0][-1])
