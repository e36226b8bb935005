"""Model files known by their content: finding them and passing them on, as far as this node does
it.

The transfer process moves the data. This module answers other nodes' calls about files, and finds
out what this node needs as a coordinator: which files a model consists of, and which parts of them
a stage reads.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from operator import itemgetter

from potluck.catalog import (
    ManifestView,
    ModelDescription,
    check_manifest,
    describe_model,
    describe_view,
    find_files,
    listed_contents,
    locate_on_disk,
    make_manifest,
    manifest_digest,
    manifest_names,
)
from potluck.catalog.locate import ModelFiles
from potluck.catalog.needs import ByteRange, stage_needs, text_needs
from potluck.cluster.agent.model_files import Fingerprints
from potluck.cluster.background import SharedCalls
from potluck.cluster.coordinator.ways import OPEN_PORT_HINT
from potluck.cluster.coordinator.weights import (
    ModelWeights,
    OnHashed,
    StageNeeds,
    find_sources,
    missing_text,
)
from potluck.cluster.network.membership import Membership
from potluck.cluster.transfer.client import TransferClient
from potluck.cluster.transfer.supervisor import TransferProcess
from potluck.cluster.wire.calls import (
    CheckModel,
    DialBack,
    ModelCheck,
    ModelFound,
)
from potluck.cluster.wire.methods import (
    CHECK_MODEL,
    DIAL,
    MANIFEST,
)
from potluck.errors import ModelNotFoundError, PotluckError, TransferError
from potluck.placement.links import link_table
from potluck.types.cluster import NodeId
from potluck.types.content import (
    Manifest,
    ReadingOrder,
    SourceKind,
    Transfer,
    runs_in_order,
)
from potluck.types.deployment import DeploymentRecord, ModelFingerprint
from potluck.types.program import Shard
from potluck.types.speed import LinkSpeed, NodeSpeeds

_log = logging.getLogger(__name__)

_CHECK_SECONDS = 5.0


DESCRIBING = "describing "
"""The prefix of names of jobs that read a model's small files and headers for a coordinator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadModel:
    """A model as its coordinator has read it; ``weights`` is None if files are not passed on."""

    description: ModelDescription
    fingerprint: ModelFingerprint
    weights: ModelWeights | None


class NodeWeights:
    """Reads models for coordinators, from this node's files or those of others.

    ``files`` is None, for the reason ``cannot``, if this node neither fetches files by their
    content nor passes them on. ``link_speeds`` returns the measured links to other nodes.
    ``transfers`` has the progress of the transfer process, by job. For use in the agent's event
    loop.
    """

    def __init__(
        self,
        membership: Membership,
        fingerprints: Fingerprints,
        files: TransferProcess | None,
        *,
        link_speeds: Callable[[], tuple[LinkSpeed, ...]],
        cannot: str = "",
    ) -> None:
        self._membership = membership
        self._fingerprints = fingerprints
        self._files = files
        self._link_speeds = link_speeds
        self.cannot = cannot
        self.transfers: dict[str, Transfer] = {}
        self._checks = SharedCalls[ModelCheck]()

    # Requests of coordinators.

    async def read(self, model: str, record: DeploymentRecord | None = None) -> ReadModel:
        """Read what a coordinator needs of a model, from this disk, other nodes or the hub.

        ``record`` is an existing deployment of it, whose files these have to be. Raises the error
        that makes it unreadable.
        """
        expected = None if record is None else record.facts.fingerprint
        known = None if record is None else record.status.files.manifest
        try:
            is_here = await asyncio.to_thread(locate_on_disk, model) is not None
            if is_here or self._files is None:
                return await asyncio.to_thread(self._read_own, model, expected)
        except PotluckError as error:
            if self._files is None:
                raise
            if known is not None:
                return await self._read_known(model, known, expected)
            if not isinstance(error, ModelNotFoundError):
                raise
            found = await self._ask_others(model, expected)
            if found is None:
                raise
            owner, its = found
            return await self._read_known(model, its.manifest, its.fingerprint, owner)
        if known is None:
            files = await asyncio.to_thread(find_files, model)
            model, known = files.pinned_name, await self.manifest_of(files)
        return await self._read_known(model, known, expected)

    def _read_own(self, model: str, expected: ModelFingerprint | None) -> ReadModel:
        description = describe_model(model)
        found = self._fingerprints.of(description)
        if expected is not None and (difference := expected.difference(found)):
            raise ModelNotFoundError(
                f"this node's files of {model} differ from those that were deployed: {difference}",
                hint="copy the model's files from a node that has them",
            )
        weights = None if self._files is None else _OwnFiles(self, description)
        return ReadModel(description=description, fingerprint=found, weights=weights)

    async def _read_known(
        self,
        model: str,
        manifest: Manifest,
        fingerprint: ModelFingerprint | None,
        owner: NodeId | None = None,
    ) -> ReadModel:
        """Read a model by the content of its files, from ``owner`` or any node that has them."""
        check_manifest(manifest, model)
        job = DESCRIBING + manifest_digest(manifest)
        await self.prepare_reading(job, manifest, () if owner is None else (owner,))
        view = await asyncio.to_thread(self.view, manifest, model, job)
        description = await asyncio.to_thread(describe_view, view)
        return ReadModel(
            description=description,
            fingerprint=fingerprint or self._fingerprints.of(description),
            weights=_KnownFiles(self, model, job, manifest),
        )

    async def _ask_others(
        self, model: str, expected: ModelFingerprint | None
    ) -> tuple[NodeId, ModelFound] | None:
        """Find a node that has a model at its path, and return the files that it has there."""
        request = CheckModel(model=model)
        requests = dict.fromkeys(sorted(self._membership.nodes()), request)
        checks = await CHECK_MODEL.call_all(
            self._membership, requests, timeout_seconds=_CHECK_SECONDS
        )
        for node, check in checks.items():
            found = check.fingerprint
            if found is None or (expected and expected.difference(found)):
                continue
            try:
                async with aclosing(MANIFEST.call(self._membership, node, request)) as events:
                    async for event in events:
                        if isinstance(event, ModelFound):
                            return node, event
            except PotluckError as error:
                _log.warning("node %s has %s but cannot send it: %s", node, model, error.message)
        return None

    async def manifest_of(self, files: ModelFiles, on_progress: OnHashed | None = None) -> Manifest:
        """Return the manifest of a model that this node has found.

        Files whose SHA-256 no hub publishes are read, after fetching them if necessary. Raises what
        prevents it.
        """
        process = self.process()
        listed = await asyncio.to_thread(listed_contents, files)
        paths = await asyncio.to_thread(manifest_names, files)
        unknown = [name for name, content in listed.items() if content is None]
        if files.snapshot is not None and unknown:
            from potluck.catalog.hub import fetch_files

            await asyncio.to_thread(fetch_files, files.snapshot, unknown)
        sizes = {name: paths[name].stat().st_size for name in unknown}
        total_bytes, done_bytes = sum(sizes.values()), 0
        contents = {name: content for name, content in listed.items() if content is not None}
        for name in unknown:

            def progressed(done: int, _: int, before: int = done_bytes) -> None:
                if on_progress is not None:
                    on_progress(before + done, total_bytes)

            contents[name] = await process.identify(paths[name], progressed)
            done_bytes += sizes[name]
        return make_manifest(files, contents)

    async def prepare_reading(
        self, job: str, manifest: Manifest, nodes: Sequence[NodeId] = ()
    ) -> None:
        """Find sources for all that this node reads for ``job``: other nodes, or the hub.

        ``nodes`` are asked what they have; all members if empty. Raise ``TransferError`` if there
        are sources, but this node cannot get anything from any of them.
        """
        contents = {file.content.sha256: file.content for file in manifest.files}
        own = self._membership.node_id
        queried = {own, *(nodes or self._membership.nodes())}
        wanted = {own: {sha256: ((0, each.num_chunks),) for sha256, each in contents.items()}}
        links = link_table((NodeSpeeds(node_id=own, links=self._link_speeds()),), {})
        found, plan = await find_sources(self._membership, sorted(queried), manifest, wanted, links)
        if plan.out_of_reach and not plan.of(own):
            raise TransferError(missing_text(plan, manifest.files), hint=OPEN_PORT_HINT)
        # This node asks the hub itself for what other nodes would have to fetch for it.
        sources = [each for each in plan.of(own) if each.kind is not SourceKind.DISK]
        peers = {node: (each.host, each.port) for node, each in found.items() if node != own}
        self.process().set_sources(job, manifest, sources, peers)

    async def ask_to_dial(self, node: NodeId) -> None:
        """Ask a node to connect to this one's transfer process, which cannot connect to it."""
        process = self.process()
        host, port = process.address
        try:
            await DIAL.call(self._membership, node, DialBack(host=host, port=port))
        except PotluckError as error:
            process.dial_failed(node, error.message)

    def end_reading(self, job: str) -> None:
        """Record that nothing more is read for ``job``."""
        if self._files is not None:
            self._files.end_job(job)

    def view(self, manifest: Manifest, name: str, job: str, *, keep: bool = True) -> ManifestView:
        """Return the files of a manifest, to be read in one thread. Blocking."""
        client = TransferClient(self.process().worker_socket())
        return ManifestView(manifest, client, name=name, job=job, keep=keep)

    def process(self) -> TransferProcess:
        """Return the transfer process. Raise ``TransferError`` if the agent runs without one."""
        if self._files is None:
            raise TransferError(
                f"node {self._membership.node_id} does not share model files: {self.cannot}",
                hint="see its agent's log",
            )
        return self._files

    # Requests of other nodes.

    async def check(self, request: CheckModel) -> ModelCheck:
        """Return whether this node has a model. Concurrent questions share one answer."""
        return await self._checks.call(lambda: self._checked(request.model), request.model)

    async def _checked(self, model: str) -> ModelCheck:
        def check() -> ModelFingerprint | None:
            if self._files is not None and locate_on_disk(model) is None:
                return None  # on the hub: known by content, and fetched once
            return self._fingerprints.of(describe_model(model))

        try:
            found, problem = await asyncio.to_thread(check), ""
        except PotluckError as error:
            found, problem = None, error.message
        return ModelCheck(fingerprint=found, problem=problem, cannot_get=self.cannot)


class _OwnFiles:
    """The files of a model at a path of the coordinator's own; implements ``ModelWeights``."""

    def __init__(self, node: NodeWeights, description: ModelDescription) -> None:
        self._node = node
        self._description = description

    async def manifest(self, on_progress: OnHashed | None = None) -> Manifest:
        """Hash its files, once."""
        return await self._node.manifest_of(self._description.files, on_progress)

    async def needs(self, manifest: Manifest, shards: Sequence[Shard]) -> tuple[StageNeeds, ...]:
        """Return what each shard reads, and what tokenizers need."""
        return await asyncio.to_thread(_needs, self._description, manifest, shards)


class _KnownFiles:
    """The files of a model that the coordinator does not have; implements ``ModelWeights``."""

    def __init__(self, node: NodeWeights, model: str, job: str, manifest: Manifest) -> None:
        self._node = node
        self._model = model
        self._job = job
        self._manifest = manifest

    async def manifest(self, on_progress: OnHashed | None = None) -> Manifest:
        """Return the manifest from the other node or the hub."""
        return self._manifest

    async def needs(self, manifest: Manifest, shards: Sequence[Shard]) -> tuple[StageNeeds, ...]:
        """Return what each shard reads, and what tokenizers need."""

        def read() -> tuple[StageNeeds, ...]:
            # The transfer process may have been restarted since it was last used.
            view = self._node.view(manifest, self._model, self._job)
            return _needs(describe_view(view), manifest, shards)

        return await asyncio.to_thread(read)


def _needs(
    description: ModelDescription, manifest: Manifest, shards: Sequence[Shard]
) -> tuple[StageNeeds, ...]:
    later = _reading_order(text_needs(description, manifest))
    return tuple(
        StageNeeds(loaded=_reading_order(ranges), later=later)
        for ranges in stage_needs(description, manifest, shards)
    )


def _reading_order(ranges: Sequence[ByteRange]) -> ReadingOrder:
    """Return the chunks that contain bytes of ``ranges``, in order."""
    chunks = dict.fromkeys(
        (content.sha256, chunk)
        for content, start, end in ranges
        if start < end
        for chunk in range(*content.chunks(start, end))
    )
    return tuple(
        (sha256, runs_in_order(chunk for _, chunk in of_file))
        for sha256, of_file in itertools.groupby(chunks, key=itemgetter(0))
    )
