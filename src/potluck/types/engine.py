"""The engine protocol: a program and its weights, computing steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from potluck.types.arithmetic import Arithmetic
    from potluck.types.program import Program
    from potluck.types.step import SampledToken, Step
    from potluck.types.tensor import TensorInfo, TensorSink


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

    def step(self, step: Step, hidden: NDArray[np.float32] | None) -> StepResult:
        """Run the program once.

        ``hidden`` is float32 ``[num_tokens, hidden_size]`` and None on the stage with the
        embedding. Raises ``EngineError`` on inconsistent input; the cache is then unchanged.
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


class LoadableEngine(Engine, Protocol):
    """An engine that a stage is loaded into."""

    @property
    def weights_bytes(self) -> int:
        """What the weights taken so far occupy."""
        ...

    def warm_up(self) -> None:
        """Compile what steps will run. Called once, with all weights and before the first step.

        It may take minutes where a driver compiles. Raises ``EngineError``.
        """
        ...


class MakeEngine(Protocol):
    """Makes engines on one unit, for whoever tries or measures it."""

    def __call__(
        self, program: Program, *, num_blocks: int, max_step_tokens: int
    ) -> LoadableEngine:
        """An engine without its weights; the caller's to close."""
        ...


class EngineCost(Protocol):
    """What an engine of one backend can compute, and what it takes for that.

    Known without the engine: no driver and no library is loaded.

    Sizes are in bytes, and at most what the engine takes. On a device with memory of its own,
    weights, caches and scratch are there, and ``process_bytes`` and staging are the host's.
    """

    def missing(self, program: Program) -> tuple[str, ...]:
        """What the program needs and such engines do not compute, in words; nothing if they can."""
        ...

    @property
    def process_bytes(self) -> int:
        """Of the host, for what the backend loads: libraries, compilers, contexts of drivers."""
        ...

    def loaded_bytes(self, info: TensorInfo) -> int:
        """A weight, of the format that it is loaded in."""
        ...

    def cache_bytes(self, program: Program, num_blocks: int) -> int:
        """The key-value caches of ``num_blocks`` blocks."""
        ...

    def scratch_bytes(
        self, program: Program, max_step_tokens: int, *, num_threads: int, arithmetic: Arithmetic
    ) -> int:
        """What a step needs besides weights and caches."""
        ...

    def staging_bytes(self, loaded: TensorInfo) -> int:
        """Of the host, what the engine's sink holds while this weight passes through it."""
        ...
