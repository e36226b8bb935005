"""Changes of a configuration: what one that forgot a feature of its model would say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from potluck.types.model import AttentionConfig, ExpertsConfig, LayerConfig, ModelConfig

Change = Callable[[ModelConfig], ModelConfig]


def each_layer(change: Callable[[LayerConfig], LayerConfig]) -> Change:
    """The change of a configuration that changes every layer."""
    return lambda config: replace(config, layers=tuple(map(change, config.layers)))


def in_layers(**changes: Any) -> Change:
    """The change of fields of every layer."""
    return each_layer(lambda layer: replace(layer, **changes))


def in_attention(**changes: Any) -> Change:
    """The change of the attention of every layer that has keys and values for heads."""

    def changed(layer: LayerConfig) -> LayerConfig:
        if not isinstance(layer.attention, AttentionConfig):
            return layer
        return replace(layer, attention=replace(layer.attention, **changes))

    return each_layer(changed)


def in_experts(**changes: Any) -> Change:
    """The change of the experts of every layer that has any."""

    def changed(experts: ExpertsConfig | None) -> ExpertsConfig | None:
        return None if experts is None else replace(experts, **changes)

    return each_layer(lambda layer: replace(layer, experts=changed(layer.experts)))


def in_mlps(**changes: Any) -> Change:
    """The change of the MLP of every layer that has one."""
    return each_layer(
        lambda layer: (
            layer if layer.mlp is None else replace(layer, mlp=replace(layer.mlp, **changes))
        )
    )


def in_recurrences(**changes: Any) -> Change:
    """The change of the recurrence of every layer that has one."""
    return each_layer(
        lambda layer: (
            layer
            if layer.recurrence is None
            else replace(layer, recurrence=replace(layer.recurrence, **changes))
        )
    )


def in_ropes(**changes: Any) -> Change:
    """The change of every rope."""
    return lambda config: replace(
        config, ropes=tuple(replace(rope, **changes) for rope in config.ropes)
    )
