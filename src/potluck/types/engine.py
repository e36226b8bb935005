"""The engine protocol: an engine holds a program and its weights, and computes steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from potluck.types.document import Count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from potluck.types.arithmetic import Arithmetic
    from potluck.types.backend import BackendAbilities
    from potluck.types.program import Program
    from potluck.types.step import SampledToken, SequenceId, Step
    from potluck.types.tensor import TensorInfo, TensorSink

    TokenMasks = Mapping[SequenceId, NDArray[np.uint32]]
    """The tokens that may be sampled for a sequence, ``uint32[num_rows, ceil(vocab_size / 32)]``.

    There is a row for each token of its slice after which one is sampled, in order. Bit ``t % 32``
    of word ``t // 32`` is 1 if token ``t`` is allowed; bits beyond the vocabulary are ignored. Any
    token is allowed for a sequence without masks.
    """


NO_MASKS: TokenMasks = MappingProxyType({})
"""Every token is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertUse:
    """The use of mapped experts by all steps so far; 0 if no expert is mapped."""

    num_used: Count = 0
    """Number of matrices of mapped experts that steps used."""
    num_in_memory: Count = 0
    """Number of them that were in memory; the others had to be read from the file."""

    def __add__(self, other: ExpertUse) -> ExpertUse:
        """Return the totals of both."""
        return ExpertUse(
            num_used=self.num_used + other.num_used,
            num_in_memory=self.num_in_memory + other.num_in_memory,
        )


NO_EXPERTS = ExpertUse()


class Exchange(Protocol):
    """The connection to the other members of a group, used by the compute thread.

    The members exchange slices during a step.
    """

    def exchange(self, sent: Sequence[memoryview], received: Sequence[memoryview]) -> None:
        """Send ``sent[m]`` to member ``m``, and fill ``received[m]`` with the data from it.

        Both have one buffer per member, in order; a member's own buffer and empty buffers are not
        exchanged. All members must call this equally often and with matching sizes. Returns when
        all data has arrived and ``sent`` may be overwritten. Raise ``EdgeError`` if a member is
        lost, and ``EngineError`` if a member cannot compute the current step.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of a step on a stage.

    ``hidden`` is float32 ``[num_tokens, hidden_size]`` for the next stage, or None on the last.
    ``sampled`` has, on the last stage, the entries of ``Step.results`` except those that wrong
    drafts omit. In a group, only member 0 returns either. The array belongs to the caller.
    """

    hidden: NDArray[np.float32] | None
    sampled: tuple[SampledToken, ...]


class Engine(Protocol):
    """One stage. It is called from one thread, and releases the GIL while it computes."""

    def sink(self) -> TensorSink:
        """Return the sink for the weights, before the first step."""
        ...

    def step(
        self, step: Step, hidden: NDArray[np.float32] | None, masks: TokenMasks = NO_MASKS
    ) -> StepResult:
        """Run the program once.

        ``hidden`` is float32 ``[num_tokens, hidden_size]``, or None on the stage with the
        embedding. ``masks``, on the stage with the head, are for sequences that the step samples:
        a token that a mask does not allow is not sampled, as if its logit were minus infinity after
        penalties and bias. Log-probabilities and scored tokens do not depend on masks.

        Raise ``EngineError`` if the input is inconsistent, for example if a mask allows no token;
        the cache is then unchanged.
        """
        ...

    def logits(self, step: Step, hidden: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """Like ``step`` on the last stage, but return the raw logits ``[num_wanted, vocab]``."""
        ...

    def reset(self) -> None:
        """Remove all sequences, which restores the state after loading. Idempotent.

        The weights stay; the contents of the cache become invalid.
        """
        ...

    def close(self) -> None:
        """Free weights and cache. Idempotent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFormat:
    """The format of the bytes of a cache block and of a state slot, for all layers of a stage.

    Engines for one program whose formats have the same ``name`` can read each other's blocks, and
    compute bit-identical blocks from the same input.
    """

    name: str
    num_bytes: int
    state_bytes: int = 0


class LoadableEngine(Engine, Protocol):
    """An engine into which a stage can be loaded."""

    @property
    def block_format(self) -> BlockFormat | None:
        """The format of blocks in ``read_blocks`` and ``write_blocks``; None if the engine has
        neither.

        ``num_bytes`` is 0 for a stage without caches.
        """
        ...

    def read_blocks(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        """Return the contents of ``blocks``, ``[len(blocks), num_bytes]``; the caller owns them.

        Raise ``EngineError`` if a block does not exist, or if ``block_format`` is None.
        """
        ...

    def write_blocks(self, blocks: Sequence[int], data: NDArray[np.uint8]) -> None:
        """Restore the output of ``read_blocks`` of this or another engine with the same program.

        Raise the errors of ``read_blocks``, and ``EngineError`` if the shape of the data is wrong;
        the cache is then unchanged.
        """
        ...

    def read_states(self, states: Sequence[int]) -> NDArray[np.uint8]:
        """Return the contents of the slots ``states``, ``[len(states), state_bytes]``.

        The caller owns them. Raise the errors of ``read_blocks``.
        """
        ...

    def write_states(self, states: Sequence[int], data: NDArray[np.uint8]) -> None:
        """Restore the output of ``read_states``; see ``write_blocks``."""
        ...

    @property
    def weights_bytes(self) -> int:
        """The memory of the weights loaded so far."""
        ...

    @property
    def expert_use(self) -> ExpertUse:
        """How many of the used matrices of mapped experts were already in memory so far."""
        ...

    def join_group(self, exchange: Exchange | None) -> None:
        """Exchange slices with the other members of the stage's group through ``exchange``.

        The caller owns it; None ends the exchange. It is required for the steps of a group member's
        program, and not used by any other. Its exceptions abort the step and are propagated.
        """
        ...

    def warm_up(self) -> None:
        """Compile everything that steps will run.

        Called once, after all weights are loaded and before the first step. It may take minutes if
        a driver compiles. Raise ``EngineError`` on failure.
        """
        ...


class MakeEngine(Protocol):
    """Creates engines on one unit, for tests and measurements."""

    def __call__(
        self, program: Program, *, num_blocks: int, max_step_tokens: int
    ) -> LoadableEngine:
        """Return an engine without weights, which the caller must close."""
        ...


class EngineCost(Protocol):
    """The abilities and memory requirements of a backend's engines, which are known without loading
    a driver or library.

    Sizes are upper bounds in bytes. On a device with its own memory, weights, caches and scratch
    are in that memory; ``process_bytes`` and staging are in the host's.
    """

    @property
    def abilities(self) -> BackendAbilities:
        """The abilities of these engines, the same as ``BackendSpec.abilities``."""
        ...

    @property
    def process_bytes(self) -> int:
        """Host memory for what the backend loads: libraries, compilers, driver contexts."""
        ...

    def loaded_bytes(self, info: TensorInfo) -> int:
        """Return the size of a weight in the format in which it is loaded."""
        ...

    def cache_bytes(self, program: Program, num_blocks: int, num_states: int = 0) -> int:
        """Return the size of ``num_blocks`` cache blocks and ``num_states`` state slots."""
        ...

    def scratch_bytes(
        self, program: Program, max_step_tokens: int, *, num_threads: int, arithmetic: Arithmetic
    ) -> int:
        """Return the memory that a step needs in addition to weights and caches."""
        ...

    def staging_bytes(self, loaded: TensorInfo) -> int:
        """Return the host memory that the engine's sink needs while it loads this weight."""
        ...
