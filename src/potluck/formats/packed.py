"""Packed files: weights in the layout that the engine uses, for memory mapping.

A file has a header and then the tensors, each of which starts on a new page. The header has
``MAGIC``; four little-endian integers (the version of this format and the layout of panels, 32 bits
each; the sizes of the JSON text and of the whole file, 64 bits each); and a JSON object with the
key of the file and each tensor's name, format, shape, offset after the header, and size. The
expected header is determined by the expected contents, so readers compare it and parse nothing.
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
"""Offsets are multiples of this. The file is mapped as a whole, so larger pages are no problem."""

_PREFIX = struct.Struct("<8sIIQQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTensor:
    """A tensor of ``num_bytes`` at byte ``offset`` of the file."""

    info: TensorInfo
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLayout:
    """The layout of a packed file: its first bytes, its tensors, and its length."""

    header: bytes
    tensors: tuple[PackedTensor, ...]
    num_bytes: int


def packed_layout(
    tensors: Iterable[tuple[TensorInfo, int]], *, key: str, panel_layout: int
) -> PackedLayout:
    """Return the layout of a file with ``tensors``, given with their sizes, in this order."""
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
