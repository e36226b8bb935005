"""Whether this node can read a model, and whether it is the same one that others read."""

from __future__ import annotations

import hashlib
from contextlib import closing

import msgspec

from potluck.catalog import ModelDescription, open_headers
from potluck.cluster.calls import ModelFingerprint


def fingerprint(description: ModelDescription) -> ModelFingerprint:
    """Of a model from the hub its name at its commit, which stands for every byte of its files.

    Of any other a digest of the configuration and of every tensor's name, shape and type. The
    values of the weights are not read then: a model that was trained further has the same one.
    """
    if description.files.snapshot is not None:
        return ModelFingerprint(digest=description.files.pinned_name)
    digest = hashlib.sha256(msgspec.json.encode(description.config))
    with closing(open_headers(description)) as source:
        for name in sorted(source.tensors):
            tensor = source.tensors[name]
            digest.update(f"{name}|{tensor.shape}|{tensor.type_name}\n".encode())
    return ModelFingerprint(digest=digest.hexdigest())
