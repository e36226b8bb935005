"""The engine protocol: a program and its weights, computing steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from potluck.types.abilities import BackendAbilities
    from potluck.types.arithmetic import Arithmetic
    from potluck.types.expert_use import ExpertUse
    from potluck.types.program import Program
    from potluck.types.step import SampledToken, SequenceId, Step
    from potluck.types.tensor import TensorInfo, TensorSink

    TokenMasks = Mapping[SequenceId, NDArray[np.uint32]]
    """The tokens that may be sampled for a sequence, ``uint32[ceil(vocab_size / 32)]``.

    Bit ``t % 32`` of word ``t // 32`` is 1 where token ``t`` is allowed; bits beyond the vocabulary
    have no meaning. A sequence without a mask may have any token.
    """

NO_MASKS: TokenMasks = MappingProxyType({})
"""Every token is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a stage gives back for a step.

    ``hidden``: float32 ``[num_tokens, hidden_size]`` for the next stage, or None on the last.
    ``sampled``: on the last stage, the entries of ``Step.results``.
    The array belongs to the caller.
    """

    hidden: NDArray[np.float32] | None
    sampled: tuple[SampledToken, ...]


class Engine(Protocol):
    """One stage. Calls come from one thread; a call releases the GIL while it computes."""

    def sink(self) -> TensorSink:
        """Where the weights go, before the first step."""
        ...

    def step(
        self, step: Step, hidden: NDArray[np.float32] | None, masks: TokenMasks = NO_MASKS
    ) -> StepResult:
        """Run the program once.

        ``hidden`` is float32 ``[num_tokens, hidden_size]`` and None on the stage with the
        embedding. ``masks``, on the stage with the head, are of sequences that the step samples:
        a token that a mask does not allow is not chosen, as if its logit were minus infinity after
        penalties and bias. Log-probabilities and scored tokens do not depend on masks.

        Raises ``EngineError`` on inconsistent input, including a mask that allows no token; the
        cache is then unchanged.
        """
        ...

    def logits(self, step: Step, hidden: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """As ``step`` on the last stage, but the raw logits ``[num_wanted, vocab]`` instead."""
        ...

    def reset(self) -> None:
        """Forget all sequences, as after the last weight was loaded. The weights stay.

        What the cache holds has no meaning any more. Idempotent.
        """
        ...

    def close(self) -> None:
        """Free weights and cache. Idempotent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFormat:
    """What the bytes of a cache block and of a state slot are, over all layers of a stage.

    Engines of one program whose formats have the same ``name`` read one another's blocks, and
    would have computed the same bits from the same input.
    """

    name: str
    num_bytes: int
    state_bytes: int = 0


class LoadableEngine(Engine, Protocol):
    """An engine that a stage is loaded into."""

    @property
    def block_format(self) -> BlockFormat | None:
        """How ``read_blocks`` and ``write_blocks`` have blocks; None if the engine has neither.

        ``num_bytes`` is 0 for a stage without caches.
        """
        ...

    def read_blocks(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        """Return what the caches hold in ``blocks``: ``[len(blocks), num_bytes]``, the caller's.

        Raises ``EngineError`` for a block that does not exist, or without ``block_format``.
        """
        ...

    def write_blocks(self, blocks: Sequence[int], data: NDArray[np.uint8]) -> None:
        """Put back what ``read_blocks`` gave, here or in another engine of the same program.

        Raises as that does, and for data of another shape; the cache is then unchanged.
        """
        ...

    def read_states(self, states: Sequence[int]) -> NDArray[np.uint8]:
        """Return what the slots ``states`` hold: ``[len(states), state_bytes]``, the caller's.

        Raises as ``read_blocks``.
        """
        ...

    def write_states(self, states: Sequence[int], data: NDArray[np.uint8]) -> None:
        """Put back what ``read_states`` gave; see ``write_blocks``."""
        ...

    @property
    def weights_bytes(self) -> int:
        """What the weights taken so far occupy."""
        ...

    @property
    def expert_use(self) -> ExpertUse:
        """How much of what was used of mapped experts was in memory, so far."""
        ...

    def warm_up(self) -> None:
        """Compile what steps will run. Called once, with all weights and before the first step.

        It may take minutes where a driver compiles. Raises ``EngineError``.
        """
        ...


class MakeEngine(Protocol):
    """Makes engines on one unit, for whoever tries or measures it."""

    def __call__(
        self, program: Program, *, num_blocks: int, max_step_tokens: int, num_states: int = 0
    ) -> LoadableEngine:
        """An engine without its weights; the caller's to close."""
        ...


class EngineCost(Protocol):
    """What an engine of one backend can compute, and what it takes for that.

    Known without the engine: no driver and no library is loaded.

    Sizes are in bytes, and at most what the engine takes. On a device with memory of its own,
    weights, caches and scratch are there, and ``process_bytes`` and staging are the host's.
    """

    @property
    def abilities(self) -> BackendAbilities:
        """What such engines can do: the same as ``BackendSpec.abilities``."""
        ...

    @property
    def process_bytes(self) -> int:
        """Of the host, for what the backend loads: libraries, compilers, contexts of drivers."""
        ...

    def loaded_bytes(self, info: TensorInfo) -> int:
        """A weight, of the format that it is loaded in."""
        ...

    def cache_bytes(self, program: Program, num_blocks: int, num_states: int = 0) -> int:
        """The key-value caches of ``num_blocks`` blocks, and ``num_states`` slots for states."""
        ...

    def scratch_bytes(
        self, program: Program, max_step_tokens: int, *, num_threads: int, arithmetic: Arithmetic
    ) -> int:
        """What a step needs besides weights and caches."""
        ...

    def staging_bytes(self, loaded: TensorInfo) -> int:
        """Of the host, what the engine's sink holds while this weight passes through it."""
        ...
