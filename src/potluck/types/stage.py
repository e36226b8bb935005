"""The size of a stage, and its memory requirements."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Quantization
from potluck.types.memory import MemoryPlan
from potluck.types.program import Shard
from potluck.types.unit import NATIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSize:
    """The allocations of every stage of a model, and the form of its weights.

    Mapped weights stay in a packed file and need no memory. ``arithmetic`` applies to backends with
    ``has_arithmetics``; others have their own. ``backend`` is that of the unit, and
    ``is_on_device`` says whether the unit has its own memory. ``num_states`` slots hold the states
    of sequences and their checkpoints; 0 for models without state.
    """

    context_tokens: int
    num_blocks: int
    max_step_tokens: int
    num_threads: int
    quantization: Quantization = Quantization.NONE
    is_mapped: bool = False
    arithmetic: Arithmetic = Arithmetic.EXACT
    backend: str = NATIVE
    has_arithmetics: bool = True
    is_on_device: bool = False
    num_states: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRemark:
    """A tensor that is not loaded in the requested format, and why."""

    name: str
    remark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """A stage, which may or may not fit; loading it reads ``read_bytes`` from its files.

    ``remarks`` lists the weights whose format differs from the format that ``size.quantization``
    specifies. ``product_formats`` are the labels of the formats of matrices that are multiplied
    with activations, which excludes norms and the embedding (unless it is also the head).
    """

    shard: Shard
    size: StageSize
    memory: MemoryPlan
    read_bytes: int
    product_formats: frozenset[str]
    remarks: tuple[TensorRemark, ...] = ()
