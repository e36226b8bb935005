"""Whether this node can read a model, and whether it is the same one that others read."""

from __future__ import annotations

import hashlib
from contextlib import closing

import msgspec

from potluck.catalog import ModelDescription, open_tensors
from potluck.cluster.calls import ModelFingerprint


def fingerprint(description: ModelDescription) -> ModelFingerprint:
    """A digest of the configuration and of every tensor's name, shape and type.

    The values of the weights are not read: a model that was trained further has the same one.
    """
    digest = hashlib.sha256(msgspec.json.encode(description.config))
    with closing(open_tensors(description.files)) as source:
        for name in sorted(source.tensors):
            tensor = source.tensors[name]
            digest.update(f"{name}|{tensor.shape}|{tensor.type_name}\n".encode())
    return ModelFingerprint(digest=digest.hexdigest())
