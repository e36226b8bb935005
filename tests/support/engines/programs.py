"""Programs that only read weights."""

from __future__ import annotations

from collections.abc import Collection

from potluck.types.program import Program, Shard, WeightRole, WeightSpec


def program_reading(
    weights: dict[str, tuple[int, ...]], *, routers: Collection[str] = ()
) -> Program:
    """A program without ops that reads tensors of these names and shapes."""
    return Program(
        shard=Shard.whole(1),
        registers=(),
        ops=(),
        weights=tuple(
            WeightSpec(
                name=name,
                shape=shape,
                role=WeightRole.ROUTER if name in routers else WeightRole.OTHER,
            )
            for name, shape in weights.items()
        ),
        caches=(),
        ropes=(),
        hidden_size=1,
        vocab_size=1,
        context_tokens=1,
    )
