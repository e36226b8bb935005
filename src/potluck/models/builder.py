"""The builder of programs."""

from __future__ import annotations

from potluck.models.names import layer_tensor
from potluck.types.model import ModelConfig, NormKind
from potluck.types.program import (
    HIDDEN,
    CacheSpec,
    CopyColumns,
    LayerNorm,
    Linear,
    Op,
    RmsNorm,
    Rope,
    Scale,
    StateSpec,
    WeightRole,
    WeightSpec,
)

BRANCH = "branch"
"""A residual branch: first its normed input, at the end its contribution to the residual stream."""

BESIDE = "beside"
"""A second branch next to the first: shared experts, experts next to an MLP, or attention next to a
recurrence."""


def add_register(registers: dict[str, int], name: str, width: int) -> str:
    """Return a register of this width, added to ``registers`` if needed: ``name``, or if that has
    another width, one named after both.
    """
    if registers.setdefault(name, width) != width:
        name = f"{name}.{width}"
        registers[name] = width
    return name


class Builder:
    """Collects ops in order, with each weight, register and cache that they use listed once."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.ops: list[Op] = []
        self.weights: dict[str, WeightSpec] = {}
        self.registers = {HIDDEN: config.hidden_size}
        self.caches: dict[int, CacheSpec] = {}
        """Maps the layer that fills a cache to its index."""
        self.states: list[StateSpec] = []

    def add(self, op: Op) -> None:
        """Append an op."""
        self.ops.append(op)

    def register(self, name: str, width: int) -> str:
        """Return a register of this width: ``name``, or if that has another width, one named after
        both.

        Which register gets the bare name depends on the shard, and does not matter.
        """
        return add_register(self.registers, name, width)

    def weight(
        self,
        name: str,
        *shape: int,
        role: WeightRole = WeightRole.OTHER,
        layer: int | None = None,
    ) -> str:
        """Return the name of a weight, and add it to the weights that the program reads."""
        spec = WeightSpec(name=name, shape=shape, role=role, layer=layer)
        self.weights.setdefault(name, spec)
        return name

    def linear(
        self,
        layer: int,
        part: str,
        x: str,
        out: str,
        *,
        bias: bool = False,
        role: WeightRole = WeightRole.OTHER,
    ) -> None:
        """Add a product with a matrix of the layer, and its bias."""
        stem = layer_tensor(layer, part)
        num_rows, num_columns = self.registers[out], self.registers[x]
        self.add(
            Linear(
                x=x,
                weight=self.weight(f"{stem}.weight", num_rows, num_columns, role=role, layer=layer),
                out=out,
                bias=self.weight(f"{stem}.bias", num_rows, layer=layer) if bias else None,
            )
        )

    def scale(self, x: str, factor: float) -> None:
        """Add a multiplication by a factor, unless it is 1."""
        if factor != 1:
            self.add(Scale(x=x, factor=factor))

    def rotate(self, x: str, num_heads: int, head_dim: int, table: int) -> None:
        """Add the rotation of heads by one of the model's tables."""
        rotary_dim = self.config.ropes[table].rotary_dim
        self.add(
            Rope(x=x, num_heads=num_heads, head_dim=head_dim, rotary_dim=rotary_dim, table=table)
        )

    def copy(self, x: str, out: str, start: int) -> None:
        """Add a copy of ``x`` to the columns of ``out`` from ``start`` on."""
        width = self.registers[x]
        self.add(
            CopyColumns(
                x=x,
                out=out,
                num_groups=1,
                count=width,
                x_stride=width,
                out_stride=self.registers[out],
                out_start=start,
            )
        )

    def norm(
        self,
        weight: str | None,
        x: str,
        out: str,
        *,
        group: int | None = None,
        epsilon: float | None = None,
    ) -> None:
        """Add the model's norm over the whole width; over groups or without a weight, an RMS norm.

        ``epsilon`` defaults to the model's.
        """
        config, width = self.config, group or self.registers[x]
        name = None if weight is None else self.weight(weight, width)
        epsilon = config.norm_epsilon if epsilon is None else epsilon
        if config.norm is NormKind.LAYER and name is not None and group is None:
            self.add(LayerNorm(x=x, weight=name, out=out, epsilon=epsilon))
        else:
            self.add(RmsNorm(x=x, weight=name, out=out, group=width, epsilon=epsilon))

    def cache(self, layer: int, spec: CacheSpec) -> int:
        """Return the index of a new cache, which the layer fills."""
        self.caches[layer] = spec
        return len(self.caches) - 1

    def shared_cache(self, layer: int, source: int) -> int:
        """Return the index of another layer's cache, which this layer reads."""
        if source not in self.caches:
            raise ValueError(
                f"layer {layer} reads the cache of {source}, which is outside the shard"
            )
        return list(self.caches).index(source)

    def state(self, rows: int, width: int) -> int:
        """Return the index of a new state."""
        self.states.append(StateSpec(rows=rows, width=width))
        return len(self.states) - 1
