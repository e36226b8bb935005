"""What a packed file is like: written down by hand, and read without our own code."""

from __future__ import annotations

import json
import struct

from potluck.formats.packed import packed_layout
from potluck.types.tensor import TensorFormat, TensorInfo

NORM = TensorInfo(name="norm", shape=(3,), format=TensorFormat.F32)
MATRIX = TensorInfo(name="matrix", shape=(20, 32), format=TensorFormat.Q8_0)


def test_the_header_says_where_everything_is() -> None:
    layout = packed_layout([(MATRIX, 5000), (NORM, 12)], key="k", panel_layout=7)
    magic, version, panels, length, num_bytes = struct.unpack("<8sIIQQ", layout.header[:32])
    assert (magic, version, panels) == (b"POTLUCKP", 1, 7)
    assert json.loads(layout.header[32 : 32 + length]) == {
        "key": "k",
        "tensors": [
            {"name": "matrix", "format": "q8_0", "shape": [20, 32], "offset": 0, "bytes": 5000},
            {"name": "norm", "format": "f32", "shape": [3], "offset": 8192, "bytes": 12},
        ],
    }
    assert layout.header[32 + length :].strip(b"\0") == b""
    assert len(layout.header) == 4096
    assert num_bytes == layout.num_bytes == 4096 + 8192 + 4096
    assert [(each.offset, each.num_bytes) for each in layout.tensors] == [
        (4096, 5000),
        (4096 + 8192, 12),
    ]


def test_files_for_different_things_have_different_headers() -> None:
    headers = {
        packed_layout([(MATRIX, 5000)], key="k", panel_layout=1).header,
        packed_layout([(MATRIX, 5000)], key="l", panel_layout=1).header,
        packed_layout([(MATRIX, 5000)], key="k", panel_layout=2).header,
        packed_layout([(MATRIX, 5001)], key="k", panel_layout=1).header,
        packed_layout([(NORM, 5000)], key="k", panel_layout=1).header,
    }
    assert len(headers) == 5
