"""Checks whether this node can read a model, and whether it is the same as on other nodes."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import closing

import msgspec

from potluck.catalog import (
    ModelDescription,
    ModelFiles,
    locate_on_disk,
    manifest_digest,
    open_headers,
)
from potluck.catalog.fingerprint import (
    Stamps,
    sample_weights,
    text_digest,
    text_stamps,
    weight_stamps,
)
from potluck.errors import EngineError, PotluckError
from potluck.types.content import Manifest
from potluck.types.deployment import DeploymentRecord, ModelFingerprint

_MAX_KEPT = 64
"""The number of models whose digests are cached; a node serves a few."""


class Fingerprints:
    """Fingerprints of models on this node, cached as long as the files do not change.

    Files are unchanged if their size, times and inode are. Thread-safe.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, Stamps], str] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, description: ModelDescription) -> ModelFingerprint:
        """Return the fingerprint of a model.

        For a model from the hub it is its name and commit, which identify every byte of its files;
        also if the model is known by the content of files from there. For other models known by
        content it is the digest of their manifest. For any other model it has three digests: of the
        configuration and the name, shape and type of every tensor; of a sample of the weights; and
        of the tokenizer side. Raises what ``catalog`` does.
        """
        if description.files.view is not None:
            return manifest_fingerprint(description.files.view.manifest)
        if description.files.snapshot is not None:
            return ModelFingerprint(digest=description.files.pinned_name)
        digest = hashlib.sha256(msgspec.json.encode(description.config))
        with closing(open_headers(description)) as source:
            for name in sorted(source.tensors):
                tensor = source.tensors[name]
                digest.update(f"{name}|{tensor.shape}|{tensor.type_name}\n".encode())
            weights = self._digest("weights", weight_stamps(source), lambda: sample_weights(source))
        return ModelFingerprint(
            digest=digest.hexdigest(), weights=weights, text=self._text(description.files)
        )

    def check_text(self, record: DeploymentRecord) -> None:
        """Raise ``EngineError`` if this node's tokenizer differs from the deployment's.

        Then this node must not answer for it. Raises what ``catalog`` does if the model is not
        here.
        """
        files = locate_on_disk(record.spec.model)
        if files is None or record.facts.fingerprint is None or not record.facts.fingerprint.text:
            return
        if self._text(files) != record.facts.fingerprint.text:
            raise EngineError(
                f"this node's tokenizer, chat template or sampling defaults of {record.spec.model} "
                "differ from those of the node that deployed it",
                hint="copy the model's files from that node, or send requests to another node",
            )

    def text_problem(self, record: DeploymentRecord, *, can_get: bool = False) -> str:
        """Return why this node cannot answer for a deployment; empty if it can.

        With ``can_get``, missing files can be fetched by content, if the deployment has a manifest.
        """
        if can_get and record.status.files.manifest is not None:
            return ""
        try:
            self.check_text(record)
        except PotluckError as error:
            return error.message
        return ""

    def _text(self, files: ModelFiles) -> str:
        return self._digest("text", text_stamps(files), lambda: text_digest(files))

    def _digest(self, what: str, stamps: Stamps, read: Callable[[], str]) -> str:
        """Return the result of ``read``, cached for unchanged files. At most one thread reads."""
        key = (what, stamps)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = read()
                while len(self._kept) > _MAX_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]


def manifest_fingerprint(manifest: Manifest) -> ModelFingerprint:
    """Return the fingerprint of a model whose files are known by their content."""
    if manifest.hub is None:
        return ModelFingerprint(digest=f"manifest {manifest_digest(manifest)}")
    pinned = f"{manifest.hub.repo_id}@{manifest.hub.commit}"
    return ModelFingerprint(digest=f"{pinned}:{manifest.main}" if manifest.main else pinned)
