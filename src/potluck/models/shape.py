"""A name for the properties of a model that determine its step times."""

from __future__ import annotations

from collections.abc import Iterable

from potluck.types.arithmetic import Arithmetic
from potluck.types.model import (
    AttentionConfig,
    ExpertsConfig,
    GatedDeltaConfig,
    LatentAttentionConfig,
    MambaConfig,
    ModelConfig,
    Recurrence,
    ShortConvConfig,
)


def model_shape(config: ModelConfig, format_label: str, arithmetic: Arithmetic) -> str:
    """Return a name for everything except depth that affects step times on a given unit.

    ``format_label`` is the format of most bytes of the layers' matrices as loaded. Models that only
    differ in their number of layers have the same name. It consists of letters, digits, ``-``,
    ``_`` and ``.``, and has at most 150 characters.
    """
    attentions = [
        each.attention for each in config.layers if isinstance(each.attention, AttentionConfig)
    ]
    latent = [
        each.attention
        for each in config.layers
        if isinstance(each.attention, LatentAttentionConfig)
    ]
    recurrences = [each.recurrence for each in config.layers if each.recurrence is not None]
    mlps = [each.mlp for each in config.layers if each.mlp is not None]
    experts = [each.experts for each in config.layers if each.experts is not None]
    windows = [each.window for each in attentions if each.window is not None]
    parts = [
        config.family,
        f"h{config.hidden_size}",
        f"i{_each(each.width for each in mlps) or 0}",
        f"q{_each(each.num_heads for each in attentions)}",
        f"kv{_each(each.num_kv_heads for each in attentions)}",
        f"d{_each(each.head_dim for each in attentions)}",
        f"v{config.vocab_size}",
        *([f"w{min(windows)}"] if windows else []),
        *(
            f"e{each.num_experts}.{each.num_experts_per_token}.{each.width}"
            + (f".{each.latent_width}" if each.latent_width else "")
            for each in dict.fromkeys(experts)
        ),
        *(f"s{width}" for width in _widths_of_shared(experts)),
        *(
            f"l{each.num_heads}.{each.query_rank or 0}.{each.latent_rank}.{each.rope_dim}"
            f".{each.nope_dim}.{each.value_dim}"
            for each in dict.fromkeys(latent)
        ),
        *(_recurrence_shape(each) for each in dict.fromkeys(recurrences)),
        format_label,
        arithmetic.value,
    ]
    kept = (c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in "-".join(parts))
    return "".join(kept)[:150]


def _each(values: Iterable[int]) -> str:
    """Return each distinct value once: layers of one model may differ."""
    return ".".join(map(str, dict.fromkeys(values)))


def _recurrence_shape(config: Recurrence) -> str:
    match config:
        case ShortConvConfig():
            return f"c{config.kernel}"
        case GatedDeltaConfig():
            return f"g{config.num_heads}.{config.num_key_heads}.{config.key_dim}.{config.value_dim}"
        case MambaConfig():
            return f"m{config.num_heads}.{config.head_dim}.{config.num_groups}.{config.state_dim}"


def _widths_of_shared(experts: Iterable[ExpertsConfig]) -> list[int]:
    return list(dict.fromkeys(each.shared.width for each in experts if each.shared is not None))
