from __future__ import annotations

import pytest

from potluck.types.quantization import Quantization
from potluck.types.tensor import TensorFormat, TensorInfo


@pytest.mark.parametrize(
    ("shape", "stored", "quantization", "target"),
    [
        ((8, 512), TensorFormat.BF16, Quantization.NONE, TensorFormat.BF16),
        ((8, 512), TensorFormat.BF16, Quantization.Q4_K, TensorFormat.Q4_K),
        ((8, 512), TensorFormat.F32, Quantization.Q8_0, TensorFormat.Q8_0),
        ((2, 8, 512), TensorFormat.F16, Quantization.Q6_K, TensorFormat.Q6_K),
        ((8, 96), TensorFormat.BF16, Quantization.Q4_K, TensorFormat.Q8_0),  # no blocks of 256
        ((8, 96), TensorFormat.BF16, Quantization.Q4_0, TensorFormat.Q4_0),
        ((8, 48), TensorFormat.BF16, Quantization.Q4_0, TensorFormat.BF16),  # none of 32 either
        ((512,), TensorFormat.BF16, Quantization.Q8_0, TensorFormat.BF16),  # a vector
        ((8, 512), TensorFormat.Q8_0, Quantization.Q4_0, TensorFormat.Q8_0),  # not twice
    ],
)
def test_what_a_tensor_becomes(
    shape: tuple[int, ...], stored: TensorFormat, quantization: Quantization, target: TensorFormat
) -> None:
    assert quantization.target(TensorInfo(name="w", shape=shape, format=stored)) is target
