"""safetensors files put together by hand, well or ill."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping


def safetensors_bytes(header: Mapping[str, object] | bytes, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor_entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
