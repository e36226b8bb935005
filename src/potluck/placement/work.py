"""The bytes that the parts of a model read and the operations that they do, from headers alone.

The parts are the embedding, each decoder layer and the head. How long they take on a unit is
computed by ``placement.times``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from potluck.models.program import program_to_count
from potluck.models.shape import model_shape
from potluck.models.work import (
    attention_multiply_adds,
    cache_bytes_per_position,
    state_multiply_adds,
)
from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Quantization
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
from potluck.types.quantization import target_format
from potluck.types.tensor import TensorFormat, TensorInfo

LoadedBytes = Callable[[TensorInfo], int]
"""``EngineCost.loaded_bytes``: the size of a weight in the format in which it is loaded."""


_WITHIN_LAYER = (Attention, CausalConv, GatedDelta, StateScan)
"""Ops that are assigned to the current layer; their weights, if any, do not identify it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Matrices of one format by which the tokens of a step are multiplied.

    ``num_bytes`` and ``num_weights`` are totals over all matrices. In a mixture of experts, each
    token is multiplied by ``num_chosen`` of ``num_experts`` equal parts of them.
    """

    format: TensorFormat
    num_bytes: int
    num_weights: int
    num_experts: int = 1
    num_chosen: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWork:
    """The bytes that a part reads, and the operations that it does.

    With attention, each token reads ``cache_bytes`` of every position that it sees (the last
    ``window`` ones, or all) and does ``attention_multiply_adds`` with it. With a state of
    ``state_bytes``, a step reads and writes one for each of its sequences, and each token does
    ``state_multiply_adds`` with it, regardless of the context length.
    """

    products: tuple[Product, ...] = ()
    cache_bytes: int = 0
    attention_multiply_adds: int = 0
    window: int | None = None
    state_bytes: int = 0
    state_multiply_adds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWork:
    """The work of all parts of a model on units of one backend.

    ``embedding_row_bytes`` are read for each token, and ``num_bytes`` are those of all matrices by
    which tokens are multiplied. Equal layers share one object. Between stages, a step sends
    ``hidden_size`` floats per token.
    """

    config: ModelConfig
    quantization: Quantization
    embedding_row_bytes: int
    layers: tuple[PartWork, ...]
    head: PartWork
    num_bytes: int

    @property
    def hidden_size(self) -> int:
        """Return the number of values per token that one stage passes to the next."""
        return self.config.hidden_size

    @property
    def dominant_format(self) -> TensorFormat:
        """Return the format with most bytes of the layers' matrices, F32 if there are none."""
        num_bytes: Counter[TensorFormat] = Counter()
        for layer in self.layers:
            for product in layer.products:
                num_bytes[product.format] += product.num_bytes
        return max(
            num_bytes, key=lambda each: (num_bytes[each], each.label), default=TensorFormat.F32
        )

    def shape(self, arithmetic: Arithmetic) -> str:
        """Return the shape under which step times of this model are stored (``model_shape``)."""
        return model_shape(self.config, self.dominant_format.label, arithmetic)


def model_work(
    profile: ModelProfile, quantization: Quantization, loaded_bytes: LoadedBytes
) -> ModelWork:
    """Return what the parts of a model read and compute.

    Raise ``KeyError`` if a tensor is missing, and the error of a tensor that cannot be loaded.
    """
    config = profile.config
    program = program_to_count(config, Shard.whole(config.num_layers), context_tokens=1)
    specs = {spec.name: spec for spec in program.weights}

    def loaded(name: str) -> TensorInfo:
        info = profile.info(name)
        format = target_format(quantization, specs[name], info, config.num_layers)
        return TensorInfo(name=name, shape=info.shape, format=format)

    parts = [PartCounter(loaded, loaded_bytes, program) for _ in range(config.num_layers)]
    head = PartCounter(loaded, loaded_bytes, program)
    row_bytes = 0
    layer: int | None = None
    for op in program.ops:
        if isinstance(op, Embed):
            row_bytes += loaded(op.weight).row_bytes
            continue
        own = layer_of(op, specs)
        if own is not None:
            layer = own
        if isinstance(op, _WITHIN_LAYER):  # after the layer's projections, whose outputs it reads
            parts[layer or 0].add(op)
        elif own is not None:
            parts[own].add(op)
        elif layer is None and parts:
            parts[0].add(op)  # the part of the embedding that every layer gets (Gemma 4 E2B)
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


class PartCounter:
    """Adds up the ops of a part.

    ``loaded`` returns what a weight of the ``program`` is loaded as.
    """

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
        """Add what an op reads and computes."""
        match op:
            case Linear() | HeadLinear() | Head():
                if op.weight is not None:
                    self._multiply(op.weight)
            case Moe():
                self.add_experts(op, (op.gate, op.up, op.down))
            case Attention():
                self._attention = op
            case CausalConv() | GatedDelta() | StateScan():
                state = self._states[op.state_index]
                self._state_bytes += state.num_bytes
                self._state_multiply_adds += state_multiply_adds(op, state)
            case _:
                pass

    def add_experts(self, op: Moe, names: Iterable[str | None]) -> None:
        """Add some of the matrices of experts; for ``op`` this replaces ``add``."""
        for name in filter(None, names):
            self._multiply(name, op.num_experts, op.num_experts_per_token)

    def _multiply(self, name: str, num_experts: int = 1, num_chosen: int = 1) -> None:
        info = self._loaded(name)
        key = (info.format, num_experts, num_chosen)
        self._bytes[key] += self._loaded_bytes(info)
        self._weights[key] += info.num_rows * info.num_columns

    @property
    def is_empty(self) -> bool:
        """Return whether nothing has been counted so far."""
        return not (self._bytes or self._attention or self._state_multiply_adds)

    def work(self) -> PartWork:
        """Return the sum."""
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


def layer_of(op: Op, specs: Mapping[str, WeightSpec]) -> int | None:
    """Return the decoder layer of an op according to its weights, None for other ops."""
    match op:
        case Linear() | HeadLinear():
            return specs[op.weight].layer
        case Moe():
            return specs[op.up].layer
        case _:
            return None
