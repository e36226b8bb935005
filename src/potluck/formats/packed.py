"""Packed files: weights as the engine computes with them, to be mapped.

A header, then the tensors, each from the start of a page. The header has ``MAGIC``; four
little-endian integers (version of this format and layout of panels, 32 bits each; bytes of the JSON
and of the whole file, 64 bits each); and a JSON object with the key that the file was made for and
every tensor's name, format, shape, offset behind the header, and bytes. All of it follows from what
is to be in the file: whoever opens one compares, and parses nothing.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace

from potluck.types.tensor import TensorInfo

MAGIC = b"POTLUCKP"
VERSION = 1

PAGE_BYTES = 4096
"""Offsets are multiples of it. The file is mapped as a whole, so larger pages do no harm."""

_PREFIX = struct.Struct("<8sIIQQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTensor:
    """``num_bytes`` at byte ``offset`` of the file."""

    info: TensorInfo
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLayout:
    """What a packed file holds and where: its first bytes, its tensors, and its length."""

    header: bytes
    tensors: tuple[PackedTensor, ...]
    num_bytes: int


def packed_layout(
    tensors: Iterable[tuple[TensorInfo, int]], *, key: str, panel_layout: int
) -> PackedLayout:
    """The file that holds ``tensors``, each with the bytes that it takes, in this order."""
    placed = []
    offset = 0
    for info, num_bytes in tensors:
        placed.append(PackedTensor(info=info, offset=offset, num_bytes=num_bytes))
        offset += _whole_pages(num_bytes)
    described = [
        {
            "name": each.info.name,
            "format": each.info.format.label,
            "shape": list(each.info.shape),
            "offset": each.offset,
            "bytes": each.num_bytes,
        }
        for each in placed
    ]
    document = json.dumps({"key": key, "tensors": described}, separators=(",", ":")).encode()
    header_bytes = _whole_pages(_PREFIX.size + len(document))
    file_bytes = header_bytes + offset
    prefix = _PREFIX.pack(MAGIC, VERSION, panel_layout, len(document), file_bytes)
    return PackedLayout(
        header=(prefix + document).ljust(header_bytes, b"\0"),
        tensors=tuple(replace(each, offset=header_bytes + each.offset) for each in placed),
        num_bytes=file_bytes,
    )


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
