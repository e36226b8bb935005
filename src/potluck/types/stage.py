"""How large a stage is, and what it is going to take."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.types.arithmetic import Arithmetic
from potluck.types.memory import MemoryPlan
from potluck.types.program import Shard
from potluck.types.quantization import Quantization
from potluck.types.unit import NATIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSize:
    """What every stage of a model allocates, and how its weights are held.

    Weights that are mapped stay in a packed file, and take no memory. ``arithmetic`` is the
    that of a backend which ``has_arithmetics``; others have one of their own. ``backend`` is that
    of the unit, ``is_on_device`` whether the unit has memory of its own. ``num_states`` slots hold
    the states of sequences and checkpoints of them; 0 for models without state.
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
    """A tensor that is not loaded in the format that was asked for, and why."""

    name: str
    remark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """A stage that fits or not; ``read_bytes`` come from its files when it is loaded.

    ``remarks`` name the weights that get another format than ``size.quantization`` has for them.
    ``product_formats`` are the labels of the formats in which matrices are held that activations
    are multiplied with: the embedding (unless it is the head as well) and norms are not.
    """

    shard: Shard
    size: StageSize
    memory: MemoryPlan
    read_bytes: int
    product_formats: frozenset[str]
    remarks: tuple[TensorRemark, ...] = ()
