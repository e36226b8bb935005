from __future__ import annotations

import pytest
from support.programs import program_reading
from support.tensor_sources import MemorySource

from potluck.errors import InsufficientMemoryError, ModelFileError
from potluck.types.memory import MemoryLimit
from potluck.types.tensor import TensorFormat, TensorInfo
from potluck.weights.budget import require_memory, weights_bytes

MIB = 2**20


def test_weights_are_counted_as_stored() -> None:
    infos = [
        TensorInfo(name="embedding", shape=(10, 256), format=TensorFormat.Q4_K),
        TensorInfo(name="norm", shape=(256,), format=TensorFormat.F32),
        TensorInfo(name="unused", shape=(1000, 1000), format=TensorFormat.F32),
    ]
    source = MemorySource({info.name: (info, b"") for info in infos})
    program = program_reading({"embedding": (10, 256), "norm": (256,)})
    assert weights_bytes(program, source) == 10 * 144 + 1024
    with pytest.raises(ModelFileError, match=r"m.gguf: the tensor head \[10, 256\] is missing"):
        weights_bytes(program_reading({"head": (10, 256)}), source, path="m.gguf")


def test_what_fits_exactly_is_allowed() -> None:
    limit = MemoryLimit(bytes=100, reason="a test")
    require_memory({"weights": 60, "cache": 40}, limit)
    with pytest.raises(InsufficientMemoryError):
        require_memory({"weights": 60, "cache": 41}, limit)


def test_the_message_says_what_is_needed_and_what_sets_the_limit() -> None:
    with pytest.raises(InsufficientMemoryError) as caught:
        require_memory(
            {"weights": 600 * MIB, "cache": 300 * MIB, "scratch": 12 * MIB},
            MemoryLimit(bytes=800 * MIB, reason="memory available on this machine"),
        )
    assert caught.value.message == (
        "912 MiB of memory are needed (weights 600 MiB, cache 300 MiB, scratch 12 MiB), and "
        "800 MiB may be used (memory available on this machine)"
    )
    assert "--context" in caught.value.hint
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (912 * MIB, 800 * MIB)
