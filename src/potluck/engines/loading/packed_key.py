"""The key of a packed file: a hash of its sources and of the conversion."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from potluck import kernels
from potluck.catalog import ContentFile, ModelDescription, canonical_source
from potluck.formats import packed
from potluck.formats.files import ByteFile, ReadOnlyFile, read_pieces
from potluck.formats.source import FileTensorSource
from potluck.models.program import program_to_count
from potluck.models.registry import stored_weights
from potluck.types.program import Program
from potluck.types.stage import StagePlan
from potluck.types.tensor import TensorInfo
from potluck.weights.load import check_weights, loaded_weights

_BLOB_NAME = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def packed_key(
    description: ModelDescription,
    tensors: FileTensorSource,
    program: Program,
    loaded: Sequence[TensorInfo],
) -> str:
    """Return a hash of the files that contain the program's weights, and of their conversion.

    ``loaded`` are the program's weights, in its order, in the engine's formats. The headers of the
    files are read. A file is identified by its content hash if it is known, or if the hub's cache
    contains it by its hash, and otherwise by its ``FileStamp``; in addition, by its length and its
    header.
    """
    stored = stored_weights(description.config, program.weights, description.files.kind)
    parts = [
        [part for name in tensor.stored_names for part in tensors.stored_parts(name)]
        for tensor in stored
    ]
    files = list(dict.fromkeys(part.file for sources in parts for part in sources))
    made = []
    for weight, tensor, sources, info in zip(program.weights, stored, parts, loaded, strict=True):
        rows = [] if weight.rows is None else [weight.rows.axis, weight.rows.start]
        made.append(
            [
                [tensor.canonical_name, info.format.label, info.shape, *rows],
                [tensor.stored_names, sources[0].type_name, repr(tensor)],
                [[files.index(source.file), source.offset] for source in sources],
            ]
        )
    document = {
        "versions": [packed.VERSION, kernels.PANEL_LAYOUT],
        "files": [_identity(file, _header_bytes(file, tensors)) for file in files],
        "tensors": made,
        "encoding": tensors.encoding,
    }
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()[:40]


def weights_key(description: ModelDescription, tensors: FileTensorSource, plan: StagePlan) -> str:
    """Return a hash of the sources and the conversion of a planned stage's weights.

    See ``packed_key``. Mapped and loaded weights are bit-identical.
    """
    program = program_to_count(description.config, plan.shard, plan.size.context_tokens)
    source = canonical_source(description, tensors, program)
    stored = check_weights(program, source, path=description.files.label)
    loaded = loaded_weights(program, stored, plan.size.quantization)
    return packed_key(description, tensors, program, list(loaded))


def _identity(file: ByteFile, header_bytes: int) -> list[object]:
    """Identify a file that is on this disk or has a known content hash."""
    if not isinstance(file, ReadOnlyFile | ContentFile):
        raise TypeError(f"{file.path} is not on this disk")
    digest = hashlib.sha256()
    for piece in read_pieces(file, 0, header_bytes):
        digest.update(piece)
    identity: list[object] = [file.size, digest.hexdigest()]
    if isinstance(file, ContentFile):
        return [*identity, file.content.sha256]
    stamp = file.stamp
    content_hash = _hash_of_the_hub(file.path, stamp.inode)
    if content_hash is not None:
        return [*identity, content_hash]
    return [*identity, stamp.modified_nanoseconds, stamp.changed_nanoseconds, stamp.inode]


def _header_bytes(file: ByteFile, tensors: FileTensorSource) -> int:
    """Return the number of bytes before the first tensor."""
    return min(tensor.offset for tensor in tensors.tensors.values() if tensor.file is file)


def _hash_of_the_hub(path: str, inode: int) -> str | None:
    """Return the name of the blob in huggingface_hub's cache to which ``path`` leads, which is the
    hash of its contents.

    The layout, ``models--org--name/blobs/<hash>``, is documented
    (https://huggingface.co/docs/huggingface_hub/guides/manage-cache).
    """
    target = Path(os.path.realpath(path))
    is_blob = (
        target.parent.name == "blobs"
        and target.parent.parent.name.startswith("models--")
        and _BLOB_NAME.fullmatch(target.name) is not None
    )
    with contextlib.suppress(OSError):
        # The path may lead to another file now than when it was opened.
        if is_blob and target.stat().st_ino == inode:
            return target.name
    return None
