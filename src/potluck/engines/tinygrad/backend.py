"""tinygrad's backends as an ``engines.backends.EngineModule``, for loading and planning.

It does not import tinygrad before an engine is opened, because the environment selects the device.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from potluck.engines.abilities import TINYGRAD_ABILITIES
from potluck.engines.tinygrad.layout import MatrixLayout
from potluck.engines.tinygrad.pieces import buckets_up_to, num_table_blocks
from potluck.engines.tinygrad_environment import tinygrad_device, tinygrad_environment
from potluck.errors import EngineError
from potluck.types.program import Attention, Head
from potluck.types.step import KV_BLOCK_TOKENS

if TYPE_CHECKING:
    from potluck.engines.native.pool import ThreadPool
    from potluck.engines.tinygrad.engine import TinygradEngine
    from potluck.types.arithmetic import Arithmetic
    from potluck.types.program import Program
    from potluck.types.tensor import TensorInfo
    from potluck.types.unit import UnitAddress

_F32_BYTES = 4


class TinygradCost:
    """An ``EngineCost``. Planning requires no driver, so tinygrad is not imported."""

    abilities = TINYGRAD_ABILITIES
    process_bytes = 384 * 2**20
    """The memory of Python with tinygrad, its expressions, the driver and its compiler.

    In addition to weights, after products with three matrices: 56 MiB with tinygrad's CPU backend,
    whose clang is a separate process, and 196 MiB with PoCL, which includes LLVM
    (``tests/integration/test_tinygrad_loading.py``). A program has a few more kernels, and a CUDA
    context is as large as PoCL.
    """

    def loaded_bytes(self, info: TensorInfo) -> int:
        """Return the size of matrices in panels and vectors as float32: what ``DeviceWeights``
        allocates.
        """
        if len(info.shape) == 1:
            return info.num_columns * _F32_BYTES
        return MatrixLayout(info).num_bytes

    def cache_bytes(self, program: Program, num_blocks: int, num_states: int = 0) -> int:
        """Return the size on a device without f16, with float32 caches: at most twice the actual
        size.

        Programs with states are not supported.
        """
        row = sum(2 * cache.num_kv_heads * cache.head_dim for cache in program.caches)
        # One more block is for padding.
        return (num_blocks + 1) * KV_BLOCK_TOKENS * row * _F32_BYTES

    def scratch_bytes(
        self, program: Program, max_step_tokens: int, *, num_threads: int, arithmetic: Arithmetic
    ) -> int:
        """Return the maximum memory of the calls of all buckets, for any number of threads and
        arithmetic.

        Every bucket has its inputs and outputs. In addition, at most the registers, twice (with the
        copies that products and norms make), and the scores of one attention exist at a time; this
        count assumes that registers do not share memory, although tinygrad's do.
        """
        context = num_table_blocks(program) * KV_BLOCK_TOKENS
        widths = sum(register.width for register in program.registers)
        scores = max(
            (op.num_heads * context for op in program.ops if isinstance(op, Attention)), default=0
        )
        logits = max((op.vocab_size for op in program.ops if isinstance(op, Head)), default=0)
        given = 4 + num_table_blocks(program) + 2 * program.hidden_size
        given += sum(2 * int(rope.cos.shape[1]) for rope in program.ropes)
        per_token = 2 * widths + scores + logits + given
        return _F32_BYTES * per_token * sum(buckets_up_to(max_step_tokens))

    def staging_bytes(self, loaded: TensorInfo) -> int:
        """Return the size of groups of panels in transfer, or of a vector as received and as
        float32.
        """
        if len(loaded.shape) == 1:
            return loaded.num_columns * (2 * _F32_BYTES)
        return MatrixLayout(loaded).staging_bytes


COST = TinygradCost()


def open_engine(
    address: UnitAddress,
    program: Program,
    *,
    num_blocks: int,
    max_step_tokens: int,
    num_threads: int,
    arithmetic: Arithmetic,
    pool: ThreadPool | None,
    num_states: int = 0,
) -> TinygradEngine:
    """See ``engines.backends.open_engine``. ``pool`` is for sampling; whatever the
    ``arithmetic``, it has one of its own. No program that it computes has states.

    It changes this process's environment permanently: a process can use only one device through
    tinygrad.
    """
    environment = tinygrad_environment(address.backend, address.interface, address.variant)
    _enter(environment, is_imported="tinygrad" in sys.modules)
    from potluck.engines.native.pool import make_pool
    from potluck.engines.tinygrad.engine import TinygradEngine

    return TinygradEngine(
        program,
        num_blocks=num_blocks,
        max_step_tokens=max_step_tokens,
        device=tinygrad_device(address.backend, address.interface),
        pool=pool or make_pool(num_threads),
    )


def _enter(environment: Mapping[str, str], *, is_imported: bool) -> None:
    """Set this process's environment, which must not change once tinygrad has read it."""
    if not is_imported:
        os.environ.update(environment)
        return
    differing = [name for name, value in environment.items() if os.environ.get(name) != value]
    if differing:
        raise EngineError(
            f"this process already uses tinygrad on {os.environ.get('DEV') or 'another device'}",
            hint="tinygrad supports one device per process; start another process for this device",
        )
