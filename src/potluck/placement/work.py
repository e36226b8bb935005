"""What a model's parts read and compute, from its headers alone.

The parts are the embedding, each decoder layer and the head. How long they take on a unit is
``placement.times``' business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from potluck.models.program import build_program
from potluck.models.shape import model_shape
from potluck.models.work import (
    attention_multiply_adds,
    cache_bytes_per_position,
    state_multiply_adds,
)
from potluck.types.arithmetic import Arithmetic
from potluck.types.model import ModelConfig
from potluck.types.profile import ModelProfile
from potluck.types.program import (
    Attention,
    CausalConv,
    Embed,
    GatedDelta,
    Head,
    HeadLinear,
    Linear,
    Moe,
    Op,
    Program,
    Shard,
    StateScan,
    WeightSpec,
)
from potluck.types.quantization import Quantization
from potluck.types.tensor import TensorFormat, TensorInfo

LoadedBytes = Callable[[TensorInfo], int]
"""``EngineCost.loaded_bytes``: what a weight takes in the format in which it is loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Matrices of one format that the tokens of a step are multiplied with.

    ``num_bytes`` and ``num_weights`` are those of all matrices together. Of a mixture of experts
    each token is multiplied with ``num_chosen`` of ``num_experts`` equal parts of them.
    """

    format: TensorFormat
    num_bytes: int
    num_weights: int
    num_experts: int = 1
    num_chosen: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWork:
    """What a part reads and computes.

    With attention, each token reads ``cache_bytes`` of every position that it sees (the last
    ``window`` ones, or all) and does ``attention_multiply_adds`` with it. With a state of
    ``state_bytes``, a step reads and writes one for each of its sequences, and each token does
    ``state_multiply_adds`` with it, however long the context is.
    """

    products: tuple[Product, ...] = ()
    cache_bytes: int = 0
    attention_multiply_adds: int = 0
    window: int | None = None
    state_bytes: int = 0
    state_multiply_adds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWork:
    """What the parts of a model read and compute on units of one backend.

    ``embedding_row_bytes`` are read for each token, and ``num_bytes`` are those of all matrices
    that tokens are multiplied with. Equal layers are one object. A step's way between stages has
    ``hidden_size`` floats for each token.
    """

    config: ModelConfig
    quantization: Quantization
    embedding_row_bytes: int
    layers: tuple[PartWork, ...]
    head: PartWork
    num_bytes: int

    @property
    def hidden_size(self) -> int:
        """Return the width of what one stage hands to the next."""
        return self.config.hidden_size

    @property
    def dominant_format(self) -> TensorFormat:
        """Return the format of most bytes of the layers' matrices, F32 if there are none."""
        num_bytes: Counter[TensorFormat] = Counter()
        for layer in self.layers:
            for product in layer.products:
                num_bytes[product.format] += product.num_bytes
        return max(num_bytes, key=lambda each: (num_bytes[each], each.label), default=_NO_FORMAT)

    def shape(self, arithmetic: Arithmetic) -> str:
        """Return the shape under which step times of this model are kept (``model_shape``)."""
        return model_shape(self.config, self.dominant_format.label, arithmetic)


_NO_FORMAT = TensorFormat.F32


def model_work(
    profile: ModelProfile, quantization: Quantization, loaded_bytes: LoadedBytes
) -> ModelWork:
    """Return what the parts of a model read and compute.

    Raise ``KeyError`` if a tensor is missing, and the error of one that cannot be loaded.
    """
    config = profile.config
    program = _program(config)
    specs = {spec.name: spec for spec in program.weights}

    def loaded(name: str) -> TensorInfo:
        info = profile.info(name)
        format = quantization.target(specs[name], info, config.num_layers)
        return TensorInfo(name=name, shape=info.shape, format=format)

    parts = [_Part(loaded, loaded_bytes, program) for _ in range(config.num_layers)]
    head = _Part(loaded, loaded_bytes, program)
    row_bytes = 0
    layer: int | None = None
    for op in program.ops:
        if isinstance(op, Embed):
            row_bytes += loaded(op.weight).row_bytes
            continue
        own = _layer_of(op, specs)
        if own is not None:
            layer = own
        if isinstance(op, _WITHIN_LAYER):  # after the layer's projections to what they read
            parts[layer or 0].add(op)
        elif own is not None:
            parts[own].add(op)
        elif layer is None and parts:
            parts[0].add(op)  # of what every layer gets from the embedding (Gemma 4 E2B)
        else:
            head.add(op)
    seen: dict[PartWork, PartWork] = {}
    works = [part.work() for part in parts]
    all_products = [product for part in (*works, head.work()) for product in part.products]
    return ModelWork(
        config=config,
        quantization=quantization,
        embedding_row_bytes=row_bytes,
        layers=tuple(seen.setdefault(layer, layer) for layer in works),
        head=head.work(),
        num_bytes=sum(product.num_bytes for product in all_products),
    )


_WITHIN_LAYER = (Attention, CausalConv, GatedDelta, StateScan)
"""Ops whose weights, if they have any, do not tell the layer."""


class _Part:
    """Adds up the ops of a part."""

    def __init__(
        self, loaded: Callable[[str], TensorInfo], loaded_bytes: LoadedBytes, program: Program
    ) -> None:
        self._loaded = loaded
        self._loaded_bytes = loaded_bytes
        self._states = program.states
        self._bytes: Counter[tuple[TensorFormat, int, int]] = Counter()
        self._weights: Counter[tuple[TensorFormat, int, int]] = Counter()
        self._attention: Attention | None = None
        self._state_bytes = self._state_multiply_adds = 0

    def add(self, op: Op) -> None:
        match op:
            case Linear() | HeadLinear() | Head():
                if op.weight is not None:
                    self._multiply(op.weight)
            case Moe():
                for name in filter(None, (op.gate, op.up, op.down)):
                    self._multiply(name, op.num_experts, op.num_experts_per_token)
            case Attention():
                self._attention = op
            case CausalConv() | GatedDelta() | StateScan():
                state = self._states[op.state_index]
                self._state_bytes += state.num_bytes
                self._state_multiply_adds += state_multiply_adds(op, state)
            case _:
                pass

    def _multiply(self, name: str, num_experts: int = 1, num_chosen: int = 1) -> None:
        info = self._loaded(name)
        key = (info.format, num_experts, num_chosen)
        self._bytes[key] += self._loaded_bytes(info)
        self._weights[key] += info.num_rows * info.num_columns

    def work(self) -> PartWork:
        attention = self._attention
        return PartWork(
            products=tuple(
                Product(
                    format=key[0],
                    num_bytes=self._bytes[key],
                    num_weights=self._weights[key],
                    num_experts=key[1],
                    num_chosen=key[2],
                )
                for key in self._bytes
            ),
            cache_bytes=0 if attention is None else cache_bytes_per_position(attention),
            attention_multiply_adds=0 if attention is None else attention_multiply_adds(attention),
            window=None if attention is None else attention.window,
            state_bytes=self._state_bytes,
            state_multiply_adds=self._state_multiply_adds,
        )


def _layer_of(op: Op, specs: Mapping[str, WeightSpec]) -> int | None:
    """Return the decoder layer of an op by the weights that it has, None for the others."""
    match op:
        case Linear() | HeadLinear():
            return specs[op.weight].layer
        case Moe():
            return specs[op.up].layer
        case _:
            return None


def _program(config: ModelConfig) -> Program:
    from potluck.models.rope import empty_rope_tables  # loads NumPy: most agents never plan

    shard = Shard.whole(config.num_layers)
    ropes = empty_rope_tables(config, context_tokens=1)
    return build_program(config, shard, context_tokens=1, ropes=ropes)
