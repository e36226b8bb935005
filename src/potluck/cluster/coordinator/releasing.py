"""Ending stages: those that a plan does not use, or all of a deployment's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from potluck.cluster.calls import ReleaseStages, StageScope, encode
from potluck.cluster.membership import Membership
from potluck.errors import CallError
from potluck.placement.keeping import Holding
from potluck.types.cluster import NodeId
from potluck.types.deployment import DeploymentRecord
from potluck.types.held_stage import HeldStage

_log = logging.getLogger(__name__)

_SECONDS = 10.0
"""The time for workers with gigabytes of memory to exit."""


async def release_others(
    membership: Membership, record: DeploymentRecord, keep: Sequence[Holding]
) -> None:
    """End the workers of the deployment, on all nodes, that hold none of the stages to ``keep``.

    A deployment with spares keeps these stages wherever they are held.
    """

    async def tell(node: NodeId) -> None:
        request = ReleaseStages(
            deployment=record.deployment,
            epoch=record.epoch,
            keep=tuple(
                variant
                for each in keep
                if each.node_id == node or record.spec.num_spares > 0
                for variant in _variants(each.stage)
            ),
        )
        await _call(membership, node, "stage.release", encode(request))

    await asyncio.gather(*(tell(node) for node in _everybody(membership)))


async def stop_everything(membership: Membership, record: DeploymentRecord) -> None:
    """End every worker of the deployment, and let none start at this epoch or a lower one."""
    scope = encode(StageScope(deployment=record.deployment, epoch=record.epoch))
    await asyncio.gather(
        *(_call(membership, node, "stage.stop", scope) for node in _everybody(membership))
    )


def _variants(stage: HeldStage) -> tuple[HeldStage, ...]:
    """Return a stage as the plan has it, and with its weights mapped."""
    if stage.is_mapped:
        return (stage,)
    return stage, msgspec.structs.replace(stage, is_mapped=True)


def _everybody(membership: Membership) -> list[NodeId]:
    return sorted(membership.nodes() | {membership.node_id})


async def _call(membership: Membership, node: NodeId, method: str, payload: bytes) -> None:
    try:
        await membership.call(node, method, payload, timeout_seconds=_SECONDS)
    except CallError as error:
        _log.info("the stages on node %s could not be ended: %s", node, error.message)
