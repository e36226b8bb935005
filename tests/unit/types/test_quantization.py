"""What becomes of each weight. Expected formats are llama.cpp's, worked out by hand."""

from __future__ import annotations

import pytest
from support.models.configs import make_config

from potluck.models.program import weight_specs
from potluck.types.choices import Quantization
from potluck.types.program import Shard, WeightRole, WeightSpec
from potluck.types.quantization import AUTOMATIC, target_format
from potluck.types.tensor import TensorFormat, TensorInfo

F32, F16, BF16 = TensorFormat.F32, TensorFormat.F16, TensorFormat.BF16
Q8_0, Q4_0, Q5_0 = TensorFormat.Q8_0, TensorFormat.Q4_0, TensorFormat.Q5_0
Q4_K, Q6_K = TensorFormat.Q4_K, TensorFormat.Q6_K
Q3_K, IQ4_NL = TensorFormat.Q3_K, TensorFormat.IQ4_NL
EMBEDDING, HEAD, OTHER = WeightRole.EMBEDDING, WeightRole.HEAD, WeightRole.OTHER
VALUE, DOWN, ROUTER = WeightRole.ATTENTION_VALUE, WeightRole.MLP_DOWN, WeightRole.ROUTER


def target(
    quantization: Quantization,
    role: WeightRole,
    *,
    shape: tuple[int, ...] = (8, 512),
    stored: TensorFormat = BF16,
    layer: int | None = None,
    num_layers: int = 32,
) -> TensorFormat:
    weight = WeightSpec(name="w", shape=shape, role=role, layer=layer)
    info = TensorInfo(name="w", shape=shape, format=stored)
    return target_format(quantization, weight, info, num_layers)


@pytest.mark.parametrize(
    ("quantization", "head", "embedding", "other"),
    [
        (Quantization.NONE, BF16, BF16, BF16),
        (Quantization.Q8_0, Q8_0, Q8_0, Q8_0),
        (Quantization.Q6_K, Q6_K, Q6_K, Q6_K),
        (Quantization.IQ4_NL, Q6_K, IQ4_NL, IQ4_NL),
        (Quantization.Q3_K, Q6_K, Q3_K, Q3_K),
        (Quantization.Q4_K, Q6_K, Q4_K, Q4_K),
        (Quantization.Q4_0, Q6_K, Q4_0, Q4_0),
    ],
)
def test_mixtures(
    quantization: Quantization, head: TensorFormat, embedding: TensorFormat, other: TensorFormat
) -> None:
    assert target(quantization, HEAD) is head
    assert target(quantization, EMBEDDING) is embedding
    assert target(quantization, OTHER, layer=3) is other
    assert target(quantization, OTHER, layer=3, shape=(4, 8, 512)) is other


@pytest.mark.parametrize("quantization", Quantization)
@pytest.mark.parametrize("stored", [F32, F16, BF16])
def test_biases_of_experts_stay_as_they_are(
    quantization: Quantization, stored: TensorFormat
) -> None:
    bias = WeightRole.EXPERT_BIAS
    assert target(quantization, bias, shape=(8, 512), stored=stored) is stored


# Of 8 layers the first, the last, and of 1 to 6 every third, from the third on.
MORE_BITS_OF_8 = {0, 3, 6, 7}
# Of 30 the first three, those from 26 on, and every third between, from the third on.
MORE_BITS_OF_30 = {0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29}


@pytest.mark.parametrize(
    ("num_layers", "more"), [(8, MORE_BITS_OF_8), (30, MORE_BITS_OF_30), (1, {0}), (2, {1})]
)
@pytest.mark.parametrize("role", [VALUE, DOWN])
def test_layers_whose_sensitive_matrices_get_more_bits(
    role: WeightRole, num_layers: int, more: set[int]
) -> None:
    formats = [
        target(Quantization.Q4_K, role, layer=layer, num_layers=num_layers)
        for layer in range(num_layers)
    ]
    assert {layer for layer, format in enumerate(formats) if format is Q6_K} == more
    assert set(formats) <= {Q4_K, Q6_K}
    for layer in range(num_layers):
        same_everywhere = (
            (Quantization.Q4_0, Q4_0),
            (Quantization.Q8_0, Q8_0),
            (Quantization.IQ4_NL, IQ4_NL),
            (Quantization.Q3_K, Q4_K),
        )
        for quantization, same in same_everywhere:
            assert target(quantization, role, layer=layer, num_layers=num_layers) is same


@pytest.mark.parametrize(
    ("shape", "stored", "quantization", "role", "expected"),
    [
        ((8, 96), BF16, Quantization.Q4_K, OTHER, Q5_0),  # no blocks of 256
        ((8, 96), BF16, Quantization.Q6_K, OTHER, Q8_0),
        ((8, 96), BF16, Quantization.Q4_0, OTHER, Q4_0),
        ((8, 96), BF16, Quantization.Q4_0, HEAD, Q8_0),
        ((8, 96), BF16, Quantization.Q4_K, HEAD, Q8_0),
        ((8, 96), BF16, Quantization.Q3_K, OTHER, IQ4_NL),
        ((8, 96), BF16, Quantization.IQ4_NL, OTHER, IQ4_NL),
        ((8, 512), TensorFormat.IQ2_XS, Quantization.NONE, OTHER, Q8_0),  # no kernels
        ((8, 48), BF16, Quantization.Q4_0, OTHER, BF16),  # none of 32 either
        ((8, 48), F16, Quantization.Q4_K, HEAD, F16),
        ((512,), BF16, Quantization.Q8_0, OTHER, BF16),  # a vector
        ((8, 512), Q8_0, Quantization.Q4_0, OTHER, Q8_0),  # not twice
        ((8, 512), Q4_0, Quantization.Q8_0, HEAD, Q4_0),
        ((8, 512), BF16, Quantization.Q4_0, ROUTER, F32),
        ((8, 512), BF16, Quantization.NONE, ROUTER, F32),
        ((8, 512), Q8_0, Quantization.Q4_0, ROUTER, Q8_0),
    ],
)
def test_rows_of_other_lengths_and_what_is_left_as_it_is(
    shape: tuple[int, ...],
    stored: TensorFormat,
    quantization: Quantization,
    role: WeightRole,
    expected: TensorFormat,
) -> None:
    assert target(quantization, role, shape=shape, stored=stored) is expected


@pytest.mark.parametrize("is_tied", [True, False])
def test_formats_do_not_depend_on_where_the_model_is_cut(is_tied: bool) -> None:
    config = make_config(num_layers=8, hidden_size=256, intermediate_size=512, tied_head=is_tied)

    def formats(shard: Shard) -> dict[str, TensorFormat]:
        return {
            weight.name: target_format(
                Quantization.Q4_K,
                weight,
                TensorInfo(name=weight.name, shape=weight.shape, format=BF16),
                shard.num_layers,
            )
            for weight in weight_specs(config, shard)
        }

    whole = formats(Shard.whole(8))
    head = "embed.weight" if is_tied else "head.weight"
    assert whole[head] is Q6_K
    assert whole["embed.weight"] is (Q6_K if is_tied else Q4_K)
    assert {name for name, format in whole.items() if format is Q6_K} == {
        head,
        *(f"layers.{layer}.attn.v.weight" for layer in MORE_BITS_OF_8),
        *(f"layers.{layer}.mlp.down.weight" for layer in MORE_BITS_OF_8),
    }
    parts: dict[str, TensorFormat] = {}
    for start, end in ((0, 0), (0, 3), (3, 5), (5, 8), (8, 8)):
        shard = Shard(
            start_layer=start,
            end_layer=end,
            num_layers=8,
            has_embedding=end == 0,
            has_head=start == 8,
        )
        for name, format in formats(shard).items():
            assert parts.setdefault(name, format) is format
    assert parts == whole


@pytest.mark.parametrize("num_columns", [512, 96, 48])
def test_stronger_quantizations_are_no_larger(num_columns: int) -> None:
    """``auto`` takes the first that fits, in the order of the names."""
    for role in WeightRole:
        for layer in range(8):
            sizes = [
                target(
                    quantization, role, shape=(8, num_columns), layer=layer, num_layers=8
                ).row_bytes(num_columns)
                for quantization in AUTOMATIC
            ]
            assert sizes == sorted(sizes, reverse=True)
