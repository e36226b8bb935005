"""Plans deployments from this node, over the nodes that are members now."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from potluck.catalog import ModelDescription, read_profile
from potluck.cluster.agent.records import Records
from potluck.cluster.agent.weights import NodeWeights, ReadModel
from potluck.cluster.coordinator.survey import plan_model
from potluck.cluster.network.membership import Membership
from potluck.drafting.sources import names_model
from potluck.engines.backends import CostOf
from potluck.errors import ParameterError
from potluck.placement.model_counting import counting_of
from potluck.placement.new_deployment import draft_request, facts_of, name_of, new_record
from potluck.placement.plan import explanation_of
from potluck.placement.planned import PlannedModel, plan_record, size_of
from potluck.types.deployment import Deploy, DeploymentRecord, StageRecord
from potluck.types.documents.plan import PlanDocument
from potluck.types.profile import ModelProfile


class Planner:
    """Reads models and plans them, without loading anything. For use in the agent's event loop."""

    def __init__(
        self, membership: Membership, records: Records, weights: NodeWeights, cost_of: CostOf
    ) -> None:
        self._membership = membership
        self._records = records
        self._weights = weights
        self._cost_of = cost_of

    async def read(
        self, model: str, record: DeploymentRecord | None = None
    ) -> tuple[ReadModel, ModelProfile]:
        """Return this node's files of a model, or those of its deployment, and their profile."""
        read = await self._weights.read(model, record)
        return read, await asyncio.to_thread(read_profile, read.description)

    def new_record(
        self, request: Deploy, read: ReadModel, profile: ModelProfile
    ) -> DeploymentRecord:
        """Return the first record of a deployment of files that were ``read``.

        Raises ``ParameterError`` for a name that is taken, unless it was derived from the model's.
        """
        name = name_of(request)
        model_id = self._records.registry.free_model_id(name)
        if model_id != name and request.is_named and not request.replaces:
            raise ParameterError(
                "name",
                f"a model is already deployed as {name}",
                hint="choose another --name, or add --replace: the new model takes over the name "
                "when it is ready",
            )
        return new_record(
            request,
            read.description,
            facts_of(read.description, profile, read.fingerprint),
            model_id=model_id,
            coordinator=self._membership.node_id,
        )

    async def draft_deploy(
        self, request: Deploy, verified: ModelDescription
    ) -> tuple[Deploy, DeploymentRecord | None]:
        """Return the request that deploys the draft model that ``request`` names, and its
        deployment if it is deployed already.

        Raises ``ParameterError`` for a model with another vocabulary.
        """
        known = self._records.registry.find(request.draft)
        named = (
            request if known is None else msgspec.structs.replace(request, draft=known.spec.model)
        )
        small = await self._weights.read(named.draft, known)
        return await asyncio.to_thread(draft_request, named, small.description, verified), known

    async def plan(self, request: Deploy) -> PlanDocument:
        """Plan a deployment, and before it that of its draft model, without loading anything."""
        from potluck.placement.plan_view import PlanOutcome, plan_view  # most are never asked

        read, profile = await self.read(request.model)
        draft: DeploymentRecord | None = None
        is_draft_deployed = False
        if names_model(request.draft):
            wanted, draft = await self.draft_deploy(request, read.description)
            is_draft_deployed = draft is not None
            if draft is None:
                small, small_profile = await self.read(wanted.model)
                draft, _ = await self._planned(wanted, small, small_profile)
        record, planned = await self._planned(
            request,
            read,
            profile,
            also_planned=() if draft is None or is_draft_deployed else draft.stages,
        )
        outcome = PlanOutcome(
            record=record,
            reports=planned.reports,
            explanation=await asyncio.to_thread(explanation_of, planned),
            draft=draft,
            is_draft_deployed=is_draft_deployed,
        )
        return plan_view(outcome, self._membership.node_id)

    async def _planned(
        self,
        request: Deploy,
        read: ReadModel,
        profile: ModelProfile,
        *,
        also_planned: Sequence[StageRecord] = (),
    ) -> tuple[DeploymentRecord, PlannedModel]:
        """Return a record with the plan of a deployment, and the plan. Raises as ``plan_model``."""
        record = self.new_record(request, read, profile)
        planned = await plan_model(
            self._membership,
            record,
            counting_of(profile, self._cost_of),
            read.fingerprint,
            size_of(profile.config, record),
            may_quantize=record.spec.quantization is None,
            weights=read.weights,
            also_planned=also_planned,
        )
        return record.with_status(plan=plan_record(planned)), planned
