"""Whether this node can read a model, and whether it is the same one that others read."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import closing

import msgspec

from potluck.catalog import ModelDescription, ModelFiles, locate_on_disk, open_headers
from potluck.catalog.fingerprint import (
    Stamps,
    sample_weights,
    text_digest,
    text_stamps,
    weight_stamps,
)
from potluck.cluster.calls import DeploymentRecord, ModelFingerprint
from potluck.errors import EngineError, PotluckError

_MAX_KEPT = 64
"""Digests of models that were looked at; a node serves a few."""


class Fingerprints:
    """Fingerprints of models on this node. What was read is kept as long as its files stay as
    they are: same size, times and inode. May be used from any thread.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, Stamps], str] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, description: ModelDescription) -> ModelFingerprint:
        """Of a model from the hub its name at its commit, which stands for every byte of its files.

        Of any other a digest of the configuration and of every tensor's name, shape and type, one
        of a sample of the weights, and one of the text's side. Raises what ``catalog`` does.
        """
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
        """Raise ``EngineError`` if this node's tokenizer is not that of the deployment.

        Then it must not answer for it. Raises what ``catalog`` does where the model is not here.
        """
        files = locate_on_disk(record.model)
        if files is None or record.fingerprint is None or not record.fingerprint.text:
            return
        if self._text(files) != record.fingerprint.text:
            raise EngineError(
                f"this node's tokenizer, chat template or sampling defaults of {record.model} are "
                "not those of the node that it was deployed from",
                hint="copy the model's files from there, or send requests to another node",
            )

    def text_problem(self, record: DeploymentRecord) -> str:
        """Why this node must not, or cannot, answer for a deployment; empty if it can."""
        try:
            self.check_text(record)
        except PotluckError as error:
            return error.message
        return ""

    def _text(self, files: ModelFiles) -> str:
        return self._digest("text", text_stamps(files), lambda: text_digest(files))

    def _digest(self, what: str, stamps: Stamps, read: Callable[[], str]) -> str:
        """What ``read`` gives, or gave for the same files. At most one thread reads."""
        key = (what, stamps)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = read()
                while len(self._kept) > _MAX_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]
