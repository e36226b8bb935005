"""The functions in a file, found by the index of its unwind tables (``.eh_frame_hdr``).

Compilers write these tables for every function on x86-64, and strip leaves them. Functions written
in assembly often have none. Formats: Linux Standard Base 5.0, Core Specification, chapter 10
(exception frames); System V ABI for x86-64, section 4.2.4.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from potluck.errors import ElfError
from potluck.portability.elf.image import END_OF_ADDRESSES, PF_X, PT_LOAD, ElfImage
from potluck.portability.elf.tables import loaded_table

_PT_GNU_EH_FRAME = 0x6474E550

_HEADER = b"\1\x1b\3\x3b"
"""Version 1, and the encodings that linkers use: the address of the frames relative to the field, a
count of four bytes, and a table of pairs of four bytes relative to the index.
"""

_PAIR = np.dtype([("start", "<i4"), ("frame", "<i4")])

_START_IN_FRAME = 8
"""A frame begins with its length and the place of its common part, of four bytes each; the start of
the function (relative to the field) and its length follow, four bytes each in the usual encoding.
"""

_MAX_FUNCTIONS = 2**22
"""libtorch_cpu has 600,000."""

_MAX_FRAMES_BYTES = 2**28
"""libtorch_cpu has 18 MB."""

_MAX_CODE_SEGMENTS = 2**4
"""Files have one or two; each of them is compared with all functions."""

Functions = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""The offsets in the file where functions start, ascending, and those where they end."""


def read_functions(image: ElfImage) -> Functions:
    """Return the functions of a little-endian 64-bit file; none if it has no index or an unusual
    one. They do not overlap and are within the file.
    """
    empty = np.zeros(0, dtype=np.int64)
    try:
        return _functions(image)
    except ElfError:
        return empty, empty


def _functions(image: ElfImage) -> Functions:
    headers = image.of_type(_PT_GNU_EH_FRAME)
    if not headers:
        raise ElfError("it has no index of frames")
    address = headers[0].vaddr
    what = "the index of frames"
    if address >= END_OF_ADDRESSES or image.loaded(address, 4, what) != _HEADER:
        raise ElfError(f"{what} has another form")
    count = int.from_bytes(image.loaded(address + 8, 4, what), "little")
    if count > _MAX_FUNCTIONS:
        raise ElfError(f"{what} claims {count} functions")
    pairs = loaded_table(image, _PAIR, address + 12, count, what)
    starts = pairs["start"].astype(np.int64) + address
    sizes = _sizes(image, pairs["frame"].astype(np.int64) + address, starts)
    offsets = _offsets(image, starts, sizes)
    order = np.argsort(offsets, kind="stable")
    begins, ends = offsets[order], (offsets + sizes)[order]
    ends[:-1] = np.minimum(ends[:-1], begins[1:])
    is_known = (sizes[order] > 0) & (begins >= 0) & (begins < ends)
    return begins[is_known], ends[is_known]


def _sizes(
    image: ElfImage, frames: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the sizes of functions from their frames; 0 where a frame does not describe the
    function, or has another encoding.
    """
    sizes = np.zeros(len(frames), dtype=np.int64)
    if not len(frames):
        return sizes
    first, last = int(frames.min()), int(frames.max())
    end = last + _START_IN_FRAME + 8
    if end - first > _MAX_FRAMES_BYTES:
        raise ElfError(f"its frames span {end - first} bytes")
    data = np.frombuffer(image.loaded(first, end - first, "the frames"), dtype=np.uint8)
    at = frames - first + _START_IN_FRAME
    bytes_at = data[at[:, None] + np.arange(8)]
    fields = np.ascontiguousarray(bytes_at).view("<i4").astype(np.int64)
    is_same = fields[:, 0] + frames + _START_IN_FRAME == starts
    sizes[is_same] = np.maximum(fields[is_same, 1], 0)
    return sizes


def _offsets(
    image: ElfImage, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return where functions are in the file; -1 for those that are not wholly in a segment of
    code.
    """
    offsets = np.full(len(starts), -1, dtype=np.int64)
    segments = [each for each in image.of_type(PT_LOAD) if each.flags & PF_X]
    if len(segments) > _MAX_CODE_SEGMENTS:
        raise ElfError(f"it has {len(segments)} segments of code")
    for segment in segments:
        end = segment.vaddr + segment.filesz
        if segment.offset + segment.filesz > len(image.data) or end > END_OF_ADDRESSES:
            continue
        is_here = (starts >= segment.vaddr) & (starts + sizes <= end)
        offsets[is_here] = starts[is_here] - segment.vaddr + segment.offset
    return offsets
