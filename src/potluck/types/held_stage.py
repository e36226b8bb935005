"""A stage that a worker has loaded, as its agent reports it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Quantization
from potluck.types.cluster import DeploymentId, Epoch, UnitId
from potluck.types.program import Shard

MAX_BYTES = 2**60
"""More memory than any machine has, and small enough that sums do not overflow an int64."""

ReportedBytes = Annotated[int, msgspec.Meta(ge=-MAX_BYTES, le=MAX_BYTES)]
"""A size that is negative if more memory is reserved than available."""


class HeldStage(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded stage held by a worker, in use at ``epoch`` or left over from it.

    ``num_bytes`` is its planned use of the machine's memory, and ``device_bytes`` that of the
    unit's own memory. A later plan keeps the stage if its other fields are the same.
    """

    deployment: DeploymentId
    epoch: Epoch
    unit_id: UnitId
    shard: Shard
    context_tokens: int
    num_blocks: int
    quantization: Quantization
    arithmetic: Arithmetic
    is_mapped: bool
    num_bytes: ReportedBytes
    device_bytes: ReportedBytes
    num_states: int = 0

    def is_same_holding(self, other: HeldStage) -> bool:
        """Return whether both are the same stage, regardless of epochs and planned memory."""
        return self == msgspec.structs.replace(
            other, epoch=self.epoch, num_bytes=self.num_bytes, device_bytes=self.device_bytes
        )
