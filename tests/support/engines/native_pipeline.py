"""Small models on the native engine, cut into stages within one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from support.engines.pools import pool_of
from support.models.configs import make_config
from support.models.random_weights import load_random_weights

from potluck.engines.native.engine import NativeEngine
from potluck.engines.native.pool import ThreadPool
from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.types.arithmetic import Arithmetic
from potluck.types.model import ExpertsConfig, ModelConfig
from potluck.types.program import Shard
from potluck.types.step import SequenceId, SequenceSlice, Step, StepId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from potluck.types.program import Program
    from potluck.types.tensor import TensorFormat

VOCAB_SIZE = 200
CONTEXT_TOKENS = 640
HEAD_DIM = 64


def small_config(
    num_layers: int, *, head_dim: int = HEAD_DIM, num_kv_heads: int = 2
) -> ModelConfig:
    """Grouped queries, biases, per-head norms, a window in every second layer, experts in every
    third, a tied head.
    """
    return make_config(
        family="test",
        num_layers=num_layers,
        hidden_size=256,
        intermediate_size=512,
        num_heads=4,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=VOCAB_SIZE,
        max_context_tokens=CONTEXT_TOKENS,
        tied_head=True,
        qkv_bias=True,
        qk_norm=True,
        sliding_windows=tuple(21 if layer % 2 else None for layer in range(num_layers)),
        experts=ExpertsConfig(
            num_experts=7, num_experts_per_token=2, width=256, norm_topk_prob=True
        ),
        expert_layers=tuple(layer for layer in range(num_layers) if layer % 3 == 1),
    )


def cut(num_layers: int, num_stages: int) -> list[Shard]:
    """Shards as even as they can be; with more stages than layers some have none."""
    bounds = [num_layers * i // num_stages for i in range(num_stages + 1)]
    return [
        Shard(
            start_layer=bounds[i],
            end_layer=bounds[i + 1],
            num_layers=num_layers,
            has_embedding=i == 0,
            has_head=i == num_stages - 1,
        )
        for i in range(num_stages)
    ]


def make_program(config: ModelConfig, shard: Shard) -> Program:
    rope = rope_tables(config, CONTEXT_TOKENS)
    return build_program(config, shard, context_tokens=CONTEXT_TOKENS, ropes=rope)


@dataclass(kw_only=True)
class Part:
    """A sequence's new tokens in one step; ``start`` is where they stand."""

    sequence: int
    tokens: Sequence[int]
    start: int
    sample: bool = True
    num_drafts: int = 0


@dataclass(kw_only=True)
class Pipeline:
    """Stages with random weights. Blocks are given to sequences in the order of a seeded shuffle,
    so that two pipelines keep the same sequence in different places.
    """

    engines: list[NativeEngine]
    free_blocks: list[int]
    tables: dict[int, list[int]] = field(default_factory=dict)
    num_steps: int = 0

    @classmethod
    def make(
        cls,
        config: ModelConfig,
        fmt: TensorFormat,
        *,
        num_stages: int = 1,
        num_threads: int = 1,
        pool: ThreadPool | None = None,
        isa: str | Sequence[str] | None = None,
        arithmetic: Arithmetic = Arithmetic.EXACT,
        num_blocks: int = 100,
        max_step_tokens: int = 600,
        block_seed: int = 0,
    ) -> Pipeline:
        """``isa`` of every stage, or of each in turn. ``pool`` instead of ``num_threads``."""
        pool = pool or pool_of(num_threads)
        isas = [isa] * num_stages if isa is None or isinstance(isa, str) else isa
        engines = []
        for shard, each in zip(cut(config.num_layers, num_stages), isas, strict=True):
            program = make_program(config, shard)
            engine = NativeEngine(
                program,
                num_blocks=num_blocks,
                max_step_tokens=max_step_tokens,
                pool=pool,
                isa=each,
                arithmetic=arithmetic,
            )
            load_random_weights(engine, program, fmt)
            engines.append(engine)
        order = np.random.default_rng(block_seed).permutation(num_blocks)
        return cls(engines=engines, free_blocks=[int(block) for block in order])

    def step_of(self, parts: Sequence[Part]) -> Step:
        slices = []
        for part in parts:
            table = self.tables.setdefault(part.sequence, [])
            while len(table) * 16 < part.start + len(part.tokens):
                table.append(self.free_blocks.pop())
            slices.append(
                SequenceSlice(
                    sequence_id=SequenceId(part.sequence),
                    tokens=tuple(part.tokens),
                    start_position=part.start,
                    block_table=tuple(table),
                    sample=part.sample,
                    num_drafts=part.num_drafts,
                )
            )
        self.num_steps += 1
        return Step(step_id=StepId(self.num_steps), slices=tuple(slices))

    def logits(self, parts: Sequence[Part]) -> NDArray[np.float32]:
        """One step; logits ``[parts that sample, vocab]``."""
        step = self.step_of(parts)
        hidden = None
        for engine in self.engines[:-1]:
            hidden = engine.step(step, hidden).hidden
        return self.engines[-1].logits(step, hidden)

    def forget(self, sequence: int) -> None:
        """Give the sequence's blocks to others."""
        self.free_blocks.extend(self.tables.pop(sequence))
