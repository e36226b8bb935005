"""Ending stages: those that a plan does not use, or all of a deployment's."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.calls import ReleaseStages, StageScope
from potluck.cluster.wire.methods import RELEASE_STAGES, STOP_STAGES
from potluck.placement.stage_reuse import Holding
from potluck.types.cluster import NodeId
from potluck.types.deployment import DeploymentRecord
from potluck.types.held_stage import HeldStage


async def release_others(
    membership: Membership, record: DeploymentRecord, keep: Sequence[Holding]
) -> None:
    """End the workers of the deployment, on all nodes, that hold none of the stages to ``keep``.

    A deployment with spares keeps these stages wherever they are held.
    """
    requests = {
        node: ReleaseStages(
            deployment=record.deployment,
            epoch=record.epoch,
            keep=tuple(
                variant
                for each in keep
                if each.node_id == node or record.spec.num_spares > 0
                for variant in _variants(each.stage)
            ),
        )
        for node in _everybody(membership)
    }
    await RELEASE_STAGES.call_all(membership, requests, level=logging.INFO)


async def stop_everything(membership: Membership, record: DeploymentRecord) -> None:
    """End every worker of the deployment, and let none start at this epoch or a lower one."""
    scope = StageScope(deployment=record.deployment, epoch=record.epoch)
    scopes = dict.fromkeys(_everybody(membership), scope)
    await STOP_STAGES.call_all(membership, scopes, level=logging.INFO)


def _variants(stage: HeldStage) -> tuple[HeldStage, ...]:
    """Return a stage as the plan has it, and with its weights mapped."""
    if stage.is_mapped:
        return (stage,)
    return stage, msgspec.structs.replace(stage, is_mapped=True)


def _everybody(membership: Membership) -> list[NodeId]:
    return sorted(membership.reachable_nodes())
