"""Configurations with one other value: computed as transformers does, or refused by name.

Where a value changes transformers' logits, Potluck gives the new ones or an error that names the
key; where it does not, Potluck gives no others. What transformers refuses is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines.proofs import PROOFS
from support.engines.stages import Stages
from support.models.lookalike_bases import BASES
from support.models.lookalikes import NUM_TOKENS, Base, Lookalike, Original, Tensors, tokens
from support.models.state_dict_source import StateDictSource

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.models.family import all_families
from potluck.models.names import FileKind
from potluck.models.registry import (
    config_from_hugging_face,
    refuse_unread_tensors,
    with_stored_head,
)
from potluck.types.model import ModelConfig

TOLERANCE = 1e-4
REDRAWN_TOLERANCE = 1e-3
"""With weights of other shapes, which may be far larger."""

# What an error may name in the place of a key, because it follows from the key's value.
CONSEQUENCES: Mapping[str, str] = {
    "enable_moe_block": "num_experts",
    "head_dim": "heads|long_factor|rotary_dim",
    "hidden_size": "hidden size|head_dim|long_factor",
    "hidden_size_per_layer_input": "vocab_size_per_layer_input",
    "layer_types": "layers of the same kind",
    "linear_num_key_heads": "linear_num_value_heads",
    "n_routed_experts": "n_group",
    "num_attention_heads": "heads|head_dim|long_factor",
    "num_experts": "num_local_experts",
    "num_experts_per_tok": "topk_group",
    "num_hidden_layers": "layers|layer_types",
    "num_kv_shared_layers": "shares keys and values",
    "num_local_experts": "num_experts",
    "partial_rotary_factor": "long_factor",
    "per_layer_config": "layers of the same kind",
    "qk_rope_head_dim": "head_dim",
}
ROPE = "rope|long_factor|in rope scaling"


def read(config: Mapping[str, Any], state: Tensors) -> ModelConfig:
    read = with_stored_head(config_from_hugging_face(config), state, FileKind.HUGGING_FACE)
    refuse_unread_tensors(read, state, FileKind.HUGGING_FACE)
    return read


def last_logits(config: ModelConfig, state: Tensors) -> NDArray[np.float32]:
    source = StateDictSource(state)
    options: dict[str, Any] = {"context_tokens": NUM_TOKENS, "num_sequences": 1}
    with Stages(config, source, rows_at_once=1000, **options) as stages:
        last: NDArray[np.float32] = stages.logits(stages.slice(0, tokens()))[0]
    return last


def names_the_key(lookalike: Lookalike, message: str) -> bool:
    wanted = re.escape(lookalike.key)
    for key in {*lookalike.label.partition("=")[0].split("."), lookalike.key}:
        wanted += f"|{CONSEQUENCES[key]}" if key in CONSEQUENCES else ""
    if lookalike.label.startswith("rope"):
        wanted += f"|{ROPE}"
    return re.search(wanted, message) is not None


def problems(original: Original, config: ModelConfig) -> Iterator[str]:
    unread = config_from_hugging_face(original.config)
    ignored: list[Lookalike] = []
    others: list[Lookalike] = []
    for each in original.lookalikes():
        try:
            is_ignored = config_from_hugging_face(each.config) == unread
        except (ModelFileError, UnsupportedModelError) as error:
            if not names_the_key(each, str(error)):
                yield f"{each.label}: refused as {error}"
            continue
        (ignored if each.is_foreign and is_ignored else others).append(each)
    # Transformers ignores most of what Potluck does, which one run shows of all.
    others += original.not_ignored(ignored)
    made: list[tuple[ModelConfig, Tensors, NDArray[np.float32]]] = [
        (config, original.twin.state, original.twin.logits[-1])
    ]
    for each in others:
        twin = original.computed(each.config)
        if twin is None:
            continue
        try:
            changed = read(each.config, twin.state)
        except UnsupportedModelError:
            continue  # tensors that are left out are refused by their names
        expected = twin.logits[-1]
        for known, state, logits in made:
            if state is twin.state and known == changed:
                actual = logits
                break
        else:
            actual = last_logits(changed, twin.state)
            made.append((changed, twin.state, actual))
        difference = float(np.abs(actual - expected).max())
        is_redrawn = twin.state is not original.twin.state
        if not difference <= (REDRAWN_TOLERANCE if is_redrawn else TOLERANCE):
            yield f"{each.label}: logits differ by {difference:.3g}"
    if len(made) == 1:
        yield "nothing was computed: one of the family's defaults may be that of a large model"


@pytest.mark.parametrize("base", BASES, ids=str)
def test_one_other_value(base: Base) -> None:
    original = Original(base)
    config = read(original.config, original.twin.state)
    actual = last_logits(config, original.twin.state)
    assert np.abs(actual - original.twin.logits[-1]).max() <= TOLERANCE
    found = list(problems(original, config))
    PROOFS.noted.clear()  # what is shown here is not what a family's models need
    assert not found, "\n".join(found)


def test_every_family_has_lookalikes() -> None:
    assert {each.family for each in BASES} == {family.name for family in all_families()}
