"""Configurations that are almost those of small random models, and what transformers makes of them.

A look-alike differs from a model's ``config.json`` in one value. Its weights are the model's where
the tensors are the same, and drawn again where their shapes are others.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.models.mamba_models import bound_steps
from support.models.random_models import LLAMA3_ROPE, SMALL, draw

Floats = NDArray[np.float32]
Tensors = Mapping[str, Floats]

NUM_TOKENS = 40

SECTIONS = ("rope_parameters", "full_attention", "sliding_attention", "per_layer_config", "1")
"""Objects of a configuration whose values change the arithmetic one by one."""

_UNRELATED = frozenset(
    {
        "_name_or_path",
        "architectures",
        "attn_implementation",
        "bos_token_id",
        "chunk_size_feed_forward",
        "dtype",
        "eos_token_id",
        "id2label",
        "initializer_range",
        "label2id",
        "model_type",
        "num_labels",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "pad_token_id",
        "problem_type",
        "return_dict",
        "tie_word_embeddings",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "vocab_size",
    }
)
"""Keys about files, outputs and training; a head that is tied or not has tests of its own."""

_MOST_WIDTH, _MOST_EXPERTS, _MOST_LAYERS = 400, 20, 8
"""Sizes above these make models that are slow; a missing key may mean such a size."""

_ROPES: Mapping[str, Mapping[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 300.0},
    "linear": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 4.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 500.0,
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 4.0,
        "beta_slow": 1.0,
    },
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 500.0,
        "original_max_position_embeddings": 32,
        "short_factor": [1.0 + 0.1 * pair for pair in range(12)],
        "long_factor": [2.0 + 0.5 * pair for pair in range(12)],
    },
    "llama3": dict(LLAMA3_ROPE),
    "proportional": {
        "rope_type": "proportional",
        "rope_theta": 500.0,
        "partial_rotary_factor": 0.5,
        "factor": 2.0,
    },
    "unknown": {"rope_type": "other", "rope_theta": 500.0, "factor": 2.0},
}
_SCALED = ("yarn", "longrope", "llama3")
_WITH_ALL_ROPES = ("llama", "gemma3_text", "ministral3")
"""One family for each reader of ropes: with these, every key is tried in every kind of rope."""

_WITH_OWN_ROPES = (
    *_WITH_ALL_ROPES,
    "deepseek_v3",
    "gemma4_text",
    "gpt_oss",
    "hunyuan_v1_dense",
    "minimax_m2",
    "olmo3",
    "phi3",
    "qwen3_5_text",
)
"""Families that read ropes in a way of their own, or stand for the others: every kind is tried."""

_ROPE_KEYS: Mapping[str, tuple[Any, ...]] = {
    "attention_factor": (1.7,),
    "beta_fast": (8.0,),
    "beta_slow": (2.0,),
    "factor": (3.0,),
    "high_freq_factor": (6.0,),
    "llama_4_scaling_beta": (0.3,),
    "low_freq_factor": (2.0,),
    "mrope_interleaved": (True,),
    "mrope_section": ([4, 4, 4],),
    "mscale": (0.6,),
    "mscale_all_dim": (0.7,),
    "original_max_position_embeddings": (16, 1024),
    "partial_rotary_factor": (0.5,),
    "rope_theta": (77.0,),
    "truncate": (False,),
    "alpha": (50.0,),
    "max_position_embeddings": (64,),
}

FOREIGN: Mapping[str, tuple[Any, ...]] = {
    "alibi": (True,),
    "attention_bias": (True, False),
    "attention_chunk_size": (8,),
    "attention_k_eq_v": (True,),
    "attention_multiplier": (0.5,),
    "attention_out_bias": (True,),
    "attention_sinks": (True,),
    "attn_logit_softcapping": (2.0,),
    "attn_output_gate": (True,),
    "attn_temperature_tuning": (True,),
    "block_ff_dim": (128,),
    "clip_qkv": (0.5,),
    "decoder_sparse_step": (2,),
    "dual_chunk_attention_config": ({"chunk_size": 8},),
    "embedding_multiplier": (3.0,),
    "enable_moe_block": (True,),
    "final_logit_softcapping": (2.0,),
    "first_k_dense_replace": (2,),
    "full_attention_interval": (2,),
    "global_head_dim": (32,),
    "head_dim": (16, 32),
    "hidden_act": ("gelu", "relu"),
    "hidden_activation": ("gelu", "silu"),
    "hidden_size_per_layer_input": (16,),
    "is_causal": (False,),
    "layer_norm_eps": (0.1,),
    "layer_types": (
        ["full_attention"],
        ["sliding_attention"],
        ["sliding_attention", "full_attention"],
        ["chunked_attention"],
        ["linear_attention"],
    ),
    "logit_scale": (3.0,),
    "logits_scaling": (3.0,),
    "max_window_layers": (1,),
    "mlp_bias": (True,),
    "mlp_only_layers": ([0],),
    "moe_intermediate_size": (32,),
    "moe_latent_size": (32,),
    "n_group": (2,),
    "n_routed_experts": (4,),
    "n_shared_experts": (1,),
    "no_rope_layer_interval": (2,),
    "no_rope_layers": ([1, 0, 1, 0],),
    "norm_before_gate": (True, False),
    "norm_topk_prob": (True, False),
    "num_experts": (4,),
    "num_experts_per_tok": (2,),
    "num_kv_shared_layers": (2,),
    "num_local_experts": (4,),
    "original_max_position_embeddings": (16,),
    "output_gate_type": ("sigmoid",),
    "partial_rotary_factor": (0.5,),
    "per_layer_config": ({"1": {"head_dim": 32}}, {"0": {"num_attention_heads": 2}}),
    "position_embedding_type": ("nope", "rope"),
    "pretraining_tp": (2,),
    "qk_norm": (True,),
    "qkv_bias": (True, False),
    "query_pre_attn_scalar": (99,),
    "residual_multiplier": (0.5,),
    "rms_norm_eps": (0.1,),
    "rope_interleave": (False,),
    "rope_interleaved": (True,),
    "rope_local_base_freq": (50.0,),
    "rope_theta": (77.0,),
    "rotary_dim": (8,),
    "rotary_pct": (0.5,),
    "routed_scaling_factor": (3.0,),
    "scoring_func": ("softmax", "sigmoid"),
    "shared_expert_intermediate_size": (32,),
    "shared_intermediate_size": (32,),
    "sliding_window": (9,),
    "sliding_window_pattern": (2,),
    "swiglu_alpha": (1.0,),
    "swiglu_limit": (0.5,),
    "time_step_limit": ([0.2, 0.6],),
    "topk_group": (1,),
    "topk_method": ("greedy",),
    "use_bias": (True,),
    "use_bidirectional_attention": (True, "all"),
    "use_double_wide_mlp": (True,),
    "use_expert_bias": (False,),
    "use_mrope": (True,),
    "use_parallel_residual": (True,),
    "use_qk_norm": (True, False),
    "use_qkv_bias": (True,),
    "use_sliding_window": (True, False),
    "zero_expert_num": (2,),
}
"""Values of keys that some family reads, and others may find in a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A small model of ``family``, a ``model_type``.

    ``has_ropes``: its look-alikes have other kinds of rope too.
    """

    family: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    has_ropes: bool = True

    def __str__(self) -> str:
        return self.name or self.family


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookalike:
    """A configuration that differs from the model's in the value of ``key``.

    ``is_foreign``: the family's configurations have no such key.
    """

    key: str
    label: str
    config: Mapping[str, Any]
    is_foreign: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """What transformers makes of a configuration: its files' tensors, and its logits."""

    state: Tensors
    logits: Floats


class Original:
    """A model that transformers makes, and its look-alikes."""

    def __init__(self, base: Base) -> None:
        from transformers import AutoConfig
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        settings = {**SMALL, "pad_token_id": None, "eos_token_id": 2, **base.settings}
        made = AutoConfig.for_model(base.family, **copy.deepcopy(settings))
        self._config_class = type(made)
        self._has_ropes = base.has_ropes
        self._parameters: dict[str, Any] = {}
        self._state: Tensors = {}
        self._twins: dict[str, Twin | None] = {}
        self.config: Mapping[str, Any] = {}
        with tempfile.TemporaryDirectory() as directory:
            model = self._make(made)
            self._parameters = dict(_named(model))
            self._state = _stored_tensors(model, Path(directory))
            config = json.loads((Path(directory) / "config.json").read_text())
            # An infinity as it is written there is not read back by ``from_dict``.
            self.config = {key: config[key] for key in config if key != "time_step_limit"}
        self.twin = Twin(state=self._state, logits=_logits(model))

    def computed(self, config: Mapping[str, Any]) -> Twin | None:
        """What transformers computes, or None where it refuses ``config`` or is too large."""
        try:
            parsed = self._config_class.from_dict(copy.deepcopy(dict(config)))
            values = parsed.to_dict()
        except Exception:  # noqa: BLE001 - an oracle that fails says nothing, whatever it raises
            return None
        # Values that are left out, null or the default are often read as the same.
        key = json.dumps(values, sort_keys=True, default=repr)
        if key not in self._twins:
            self._twins[key] = None if _is_large(values) else self._computed(parsed)
        return self._twins[key]

    def _computed(self, parsed: Any) -> Twin | None:
        try:
            model = self._make(parsed)
            logits = _logits(model)
        except Exception:  # noqa: BLE001 - an oracle that fails says nothing, whatever it raises
            return None
        state = self._state
        named = dict(_named(model))
        if {name: each.shape for name, each in named.items()} != {
            name: each.shape for name, each in self._parameters.items()
        }:
            with tempfile.TemporaryDirectory() as directory:
                state = _stored_tensors(model, Path(directory))
        return Twin(state=state, logits=logits)

    def lookalikes(self) -> Iterator[Lookalike]:
        """Every key of the configuration with other values, null, and left out."""
        known = self._config_class().to_dict()
        yield from _changed(self.config, known)
        if self._has_ropes:
            yield from _with_other_ropes(self.config, ("rope_parameters",))
        for key, values in FOREIGN.items():
            if key in self.config or key in known:
                continue
            for value in values:
                each = _of_layers(key, value, self.config)
                yield dataclasses.replace(_lookalike(self.config, (key,), each), is_foreign=True)

    def not_ignored(self, lookalikes: Sequence[Lookalike]) -> Sequence[Lookalike]:
        """Those of foreign keys that may change what transformers computes."""
        if not lookalikes or self._ignores(lookalikes):
            return ()
        if len(lookalikes) == 1:
            return lookalikes
        middle = len(lookalikes) // 2
        halves = lookalikes[:middle], lookalikes[middle:]
        return tuple(each for half in halves for each in self.not_ignored(half))

    def _ignores(self, lookalikes: Sequence[Lookalike]) -> bool:
        """Whether transformers computes the same with all foreign values, as far as one can tell.

        Of the values of one key, each is in another configuration than the others.
        """
        remaining = list(lookalikes)
        while remaining:
            first = {each.key: each for each in reversed(remaining)}
            values = {key: each.config[key] for key, each in first.items()}
            twin = self.computed({**self.config, **values})
            if twin is None or not np.array_equal(twin.logits, self.twin.logits):
                return False
            remaining = [each for each in remaining if each is not first[each.key]]
        return True

    def _make(self, config: Any) -> Any:
        import torch
        from transformers import AutoModelForCausalLM, initialization

        torch.set_num_threads(1)
        with initialization.no_init_weights():
            model = AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, attn_implementation="eager"
            ).eval()
        with torch.no_grad():
            for name, each in _named(model):
                same = self._parameters.get(name)
                if same is None or same.shape != each.shape:
                    each.copy_(torch.from_numpy(_draw(name, tuple(each.shape))))
                else:
                    each.copy_(same)
        bound_steps(model)
        return model


def _named(model: Any) -> Iterator[tuple[str, Any]]:
    yield from model.named_parameters()
    for name, each in model.named_buffers():
        if name.endswith(("layer_scalar", "e_score_correction_bias", "expert_bias")):
            yield name, each


def _draw(name: str, shape: tuple[int, ...]) -> Floats:
    generator = np.random.default_rng(list(name.encode()))
    if name.endswith(("layer_scalar", "per_expert_scale", "router.scale")):
        return (1 + 0.2 * generator.standard_normal(shape)).astype(np.float32)
    if name.endswith(("_bias", "sinks")):
        return (0.3 * generator.standard_normal(shape)).astype(np.float32)
    return draw(generator, name, shape)


def _stored_tensors(model: Any, directory: Path) -> Tensors:
    from safetensors.numpy import load_file

    model.save_pretrained(directory)
    state: Tensors = load_file(directory / "model.safetensors")
    return state


def _logits(model: Any) -> Floats:
    import torch

    with torch.no_grad():
        output = model(torch.tensor([tokens()]), use_cache=False)
    logits: Floats = output.logits[0].numpy()
    return logits


def tokens() -> list[int]:
    """Token ids that are run through every model."""
    drawn: list[int] = np.random.default_rng(1).integers(0, 97, NUM_TOKENS).tolist()
    return drawn


def _is_large(values: Mapping[str, Any]) -> bool:
    return any(
        isinstance(value, int)
        and key != "vocab_size_per_layer_input"
        and (
            (key.endswith("_size") and value > _MOST_WIDTH)
            or (key.endswith("experts") and value > _MOST_EXPERTS)
            or (key == "num_hidden_layers" and value > _MOST_LAYERS)
        )
        for key, value in values.items()
    )


def _changed(
    config: Mapping[str, Any], known: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[Lookalike]:
    section = config
    for key in path:
        section = section[key]
    for key in dict.fromkeys((*section, *known)):
        if key in _UNRELATED:
            continue
        value = section.get(key)
        if isinstance(value, Mapping) and key in SECTIONS:
            yield from _changed(config, {}, (*path, key))
        else:
            for other in _others(key, value if key in section else known[key]):
                yield _lookalike(config, (*path, key), other)
        if key in section:
            yield _lookalike(config, (*path, key), None)
            yield _without(config, (*path, key))


def _with_other_ropes(config: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Lookalike]:
    section = config
    for each in path:
        section = section[each]
    if "rope_theta" not in section:
        for kind in section:
            yield from _with_other_ropes(config, (*path, kind))
        return
    own = config["model_type"] in _WITH_OWN_ROPES
    for kind, rope in _ROPES.items() if own else ():
        yield _lookalike(config, path, rope, label=kind)
        if path == ("rope_parameters",):
            old = {"type": kind, **rope}
            del old["rope_type"], old["rope_theta"]
            replaced = {k: v for k, v in config.items() if k != "rope_parameters"}
            replaced |= {"rope_scaling": old, "rope_theta": 500.0}
            yield Lookalike(key="rope_scaling", label=f"rope_scaling={kind}", config=replaced)
    kinds = _SCALED if config["model_type"] in _WITH_ALL_ROPES else ()
    for base in ({}, *(_ROPES[kind] for kind in kinds)):
        for key, values in _ROPE_KEYS.items():
            for value in values:
                rope = {**(base or section), key: value}
                label = f"{base.get('rope_type', 'own')}-{key}={_brief(value)}"
                yield _lookalike(config, path, rope, label=label, key=key)


def _others(key: str, value: Any) -> Iterator[Any]:
    """Other values of a key, of the same type as ``value`` where that says one."""
    if key in FOREIGN and (value is None or isinstance(value, str)):
        yield from (each for each in FOREIGN[key] if each != value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value * 2 or 1
        if value:
            yield value // 2
    elif isinstance(value, float):
        yield from (value * 2, 0.1 if value < 0.1 else value / 4)
    elif isinstance(value, list) and value:
        yield value[::-1]
        yield [value[-1]] * len(value)
        yield value[:-1]
    elif isinstance(value, str):
        yield "other"


def _of_layers(key: str, value: Any, config: Mapping[str, Any]) -> Any:
    if key != "layer_types":
        return value
    count = config.get("num_hidden_layers") or len(config["layers_block_type"])
    return (value * count)[:count]


def _lookalike(
    config: Mapping[str, Any],
    path: tuple[str, ...],
    value: Any,
    *,
    label: str = "",
    key: str = "",
) -> Lookalike:
    changed = copy.deepcopy(dict(config))
    section = changed
    for each in path[:-1]:
        section = section[each]
    section[path[-1]] = _of_layers(path[-1], value, config) if value else value
    label = f"{'.'.join(path)}={label or _brief(value)}"
    return Lookalike(key=key or path[-1], label=label, config=changed)


def _without(config: Mapping[str, Any], path: tuple[str, ...]) -> Lookalike:
    changed = copy.deepcopy(dict(config))
    section = changed
    for each in path[:-1]:
        section = section[each]
    del section[path[-1]]
    return Lookalike(key=path[-1], label=f"{'.'.join(path)}-absent", config=changed)


def _brief(value: Any) -> str:
    return json.dumps(value).replace(" ", "").replace('"', "")[:40]
