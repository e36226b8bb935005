"""The engine protocol: a program and its weights, computing steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from potluck.types.step import SampledToken, Step
    from potluck.types.tensor import TensorSink


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a stage gives back for a step.

    ``hidden``: float32 ``[num_tokens, hidden_size]`` for the next stage, or None on the last.
    ``sampled``: one entry per slice with ``sample``, in slice order, on the last stage.
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
        """As ``step`` on the last stage, but the raw logits ``[num_sampled, vocab]`` instead."""
        ...

    def close(self) -> None:
        """Free weights and cache. Idempotent."""
        ...
