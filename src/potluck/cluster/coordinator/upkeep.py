"""The work for a plan in force that no request waits for: spares, files, and unused stages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from potluck.cluster.background import Spawn
from potluck.cluster.coordinator.attempt import Attempt
from potluck.cluster.coordinator.published_record import PublishedRecord
from potluck.cluster.coordinator.releasing import release_others
from potluck.cluster.coordinator.spares import load_spares
from potluck.cluster.coordinator.verification import verify_files
from potluck.cluster.coordinator.weights import ModelWeights, gather_transfers
from potluck.cluster.membership import Membership
from potluck.errors import ModelFileError, PotluckError
from potluck.types.deployment import Verification

_log = logging.getLogger(__name__)

_TRANSFERS_SECONDS = 1.0
"""The time for transfer processes to report their final figures; they report twice a second."""


class Upkeep:
    """Does this work after an epoch begins to serve, and when a node joins. For the agent's loop.

    ``in_force`` returns the attempt whose plan serves; None between two plans. ``discard`` removes
    the deployment, with a reason, if its files are damaged.
    """

    def __init__(
        self,
        membership: Membership,
        published: PublishedRecord,
        weights: ModelWeights | None,
        *,
        in_force: Callable[[], Attempt | None],
        discard: Callable[[str], None],
        spawn: Spawn,
    ) -> None:
        self.num_spares = 0
        self._membership = membership
        self._published = published
        self._weights = weights
        self._in_force = in_force
        self._discard = discard
        self._spawn = spawn

    def served(self, attempt: Attempt) -> None:
        """Handle that the plan of an attempt serves now."""
        self._spawn(self._settle(attempt))

    def node_joined(self) -> None:
        """Handle a node that may hold spares and answer clients."""
        if self._published.record.spec.num_spares:
            self._spawn(self._load_spares())
        self._spawn(self._identify_files())

    async def release_unused(self) -> None:
        """End the workers, on all nodes, that hold none of the stages of the plan in force."""
        if (attempt := self._in_force()) is not None:
            await release_others(self._membership, attempt.record, attempt.stages)

    async def _settle(self, attempt: Attempt) -> None:
        """Release what the plan does not use, and load its spares."""
        await self.release_unused()
        await self._load_spares()
        if attempt.record.status.files.manifest is not None:
            await self._publish_files(attempt)
        await self._identify_files()

    async def _identify_files(self) -> None:
        """Let nodes that have none of the model's files read its texts, to answer clients."""
        attempt = self._in_force()
        if attempt is None:
            return  # the next epoch does it
        try:
            if await attempt.identify_files():
                self._published.say()
        except PotluckError as error:
            _log.warning(
                "%s: nodes without its files cannot answer for it: %s",
                self._published.record.model_id,
                error.message,
            )

    async def _publish_files(self, attempt: Attempt) -> None:
        """Publish what nodes fetched of the model's files, and whether the files are intact."""
        await asyncio.sleep(_TRANSFERS_SECONDS)
        attempt.note_transfers(await gather_transfers(self._membership, attempt.record))
        self._published.say()
        if attempt.record.status.files.verification is not Verification.PENDING:
            return
        try:
            attempt.note_verification(await verify_files(self._membership, attempt.record))
        except ModelFileError as error:
            _log.error("%s was undeployed: %s", self._published.record.model_id, error.message)
            self._discard(error.message)
        else:
            self._published.say()

    async def _load_spares(self) -> None:
        if self._published.record.spec.num_spares and (attempt := self._in_force()) is not None:
            sparings = await attempt.sparings()
            self.num_spares = await load_spares(
                self._membership,
                attempt.record,
                attempt.size,
                sparings,
                self._weights,
                attempt.links,
            )
