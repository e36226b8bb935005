"""Loads weights onto tinygrad's device ``DEV``, for a parent that watches how much that takes.

``python -m support.tinygrad.loading_child MIB``: when the device is open, ``ready`` goes out; an
empty line comes in, and a line with the bytes on the device and of staging goes out; an empty line
comes in, one product is computed by each matrix, and ``done`` goes out; an empty line comes in, all
is freed, and ``freed`` goes out; it ends with its input.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from support.engines.programs import program_reading

from potluck.engines.tinygrad.adapter import Device, Tensor
from potluck.engines.tinygrad.backend import TinygradCost
from potluck.engines.tinygrad.weights import DeviceWeights
from potluck.types.tensor import TensorFormat, TensorInfo

_COLUMNS = 4096
_BLOCK_BYTES = 5 * 2**20  # as the loader gives them
_FORMATS = (TensorFormat.Q4_K, TensorFormat.Q8_0, TensorFormat.BF16)


def main() -> None:
    total_bytes = int(sys.argv[1]) * 2**20
    infos = [
        TensorInfo(
            name=format.label,
            shape=(total_bytes // len(_FORMATS) // format.row_bytes(_COLUMNS), _COLUMNS),
            format=format,
        )
        for format in _FORMATS
    ]
    program = program_reading({info.name: info.shape for info in infos})
    sink = DeviceWeights(program, Device.DEFAULT, has_f16=False)
    block = memoryview(bytearray(b"\x2a" * _BLOCK_BYTES))
    print("ready", flush=True)
    sys.stdin.readline()
    for info in infos:
        load(sink, info, block)
    staging_bytes = max(TinygradCost().staging_bytes(info) for info in infos)
    print(json.dumps({"weights": sink.num_bytes, "staging": staging_bytes}), flush=True)
    sys.stdin.readline()
    x = Tensor(np.ones((1, _COLUMNS), np.float32))
    for info in infos:
        assert np.isfinite(sink.matrix(info.name).linear(x).numpy()).all()
    print("done", flush=True)
    sys.stdin.readline()
    sink.clear()
    print("freed", flush=True)
    sys.stdin.readline()


def load(sink: DeviceWeights, info: TensorInfo, block: memoryview) -> None:
    """All rows, as many at a time as the loader gives."""
    step = len(block) // info.row_bytes
    sink.begin(info)
    for start in range(0, info.num_rows, step):
        end = min(start + step, info.num_rows)
        sink.write_rows(info.name, start, end, block[: (end - start) * info.row_bytes])
    sink.finish(info.name)


if __name__ == "__main__":
    main()
