"""What members compute and exchange, counted from their programs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from support.placement.grouping import LARGE, SIZE, counting
from support.placement.units import llama_config

from potluck.placement.divided_work import DividedWork
from potluck.placement.work import PartWork
from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Quantization
from potluck.types.model import ExpertsConfig, ModelConfig
from potluck.types.stage import StageSize
from potluck.types.tensor import TensorFormat

HIDDEN, WIDE, VOCABULARY, LAYERS = 2048, 8192, 32768, 16
INT8 = 1.25


def divided(
    shares: tuple[int, ...], *, config: ModelConfig = LARGE, size: StageSize = SIZE
) -> DividedWork:
    count = counting(config).divided
    assert count is not None
    return count(size, shares)


def num_bytes(part: PartWork) -> int:
    return sum(each.num_bytes for each in part.products)


def test_a_layer_of_attention_and_an_mlp_has_four_exchanges() -> None:
    work = divided((2, 1, 1))
    assert work.num_exchanges == 4 * LAYERS + 2
    attention, output, gate, down = work.layers[0]
    # Eight key-value heads are divided 4 : 2 : 2, and what products read has int8 values.
    assert attention.sent_bytes == (HIDDEN / 2 * INT8, HIDDEN / 4 * INT8, HIDDEN / 4 * INT8)
    assert output.sent_bytes == (HIDDEN * 2, HIDDEN, HIDDEN)
    assert gate.sent_bytes == (WIDE / 2 * INT8, WIDE / 4 * INT8, WIDE / 4 * INT8)
    assert down.sent_bytes == output.sent_bytes
    (embedding,), (head,) = work.embedding, work.head
    assert sum(embedding.sent_bytes) == pytest.approx(4 * HIDDEN)
    assert head.is_to_leader
    assert sum(head.sent_bytes) == 4 * VOCABULARY
    assert not any(phase.is_to_leader for phase in work.layers[0])


def test_the_parts_of_all_members_make_up_the_whole() -> None:
    work = divided((3, 2, 1))
    for phases, whole in ((work.layers[0], work.whole.layers[0]), (work.head, work.whole.head)):
        weights: Counter[TensorFormat] = Counter()
        for phase in phases:
            for part in phase.parts:
                for product in part.products:
                    weights[product.format] += product.num_weights
        assert weights == {each.format: each.num_weights for each in whole.products}
    attention = work.layers[0][0]
    assert sum(part.cache_bytes for part in attention.parts) == work.whole.layers[0].cache_bytes
    heads = [part.attention_multiply_adds for part in attention.parts]
    assert heads[0] > heads[1] > heads[2]


def test_layers_that_are_alike_are_one_object() -> None:
    assert len({id(layer) for layer in divided((1, 1)).layers}) <= 2  # of a quantized model


def test_floats_are_exchanged_as_the_products_read_them() -> None:
    exact = replace(SIZE, quantization=Quantization.NONE)
    fast = replace(exact, arithmetic=Arithmetic.AVX512_BF16)
    assert divided((1, 1), size=exact).layers[0][0].sent_bytes == (4 * HIDDEN / 2,) * 2
    assert divided((1, 1), size=fast).layers[0][0].sent_bytes == (2 * HIDDEN / 2,) * 2
    assert divided((1, 1), size=fast).layers[0][1].sent_bytes == (4 * HIDDEN / 2,) * 2


def test_experts_are_divided_by_rows_and_their_activations_exchanged() -> None:
    experts = ExpertsConfig(num_experts=8, num_experts_per_token=2, width=512, norm_topk_prob=True)
    config = llama_config(2, experts=experts, expert_layers=(0, 1))
    work = divided((1, 1), config=config)
    before_down = next(
        phase
        for phase in work.layers[0]
        if any(product.num_experts == 8 for product in phase.parts[0].products)
    )
    # Two experts of each token, half of the width on each member.
    assert before_down.sent_bytes == (2 * 256 * INT8,) * 2
    whole = sum(each.num_bytes for each in work.whole.layers[0].products if each.num_experts == 8)
    parts = sum(
        product.num_bytes
        for phase in work.layers[0]
        for part in phase.parts
        for product in part.products
        if product.num_experts == 8
    )
    assert parts == whole


def test_members_share_a_key_value_head_where_there_are_fewer() -> None:
    config = llama_config(2, num_kv_heads=2)
    work = divided((1, 1, 1), config=config)
    whole = work.whole.layers[0]
    attending = [
        phase for phase in work.layers[0] if any(p.attention_multiply_adds for p in phase.parts)
    ]
    assert len(attending) == 1
    parts = attending[0].parts
    assert sum(part.attention_multiply_adds for part in parts) == whole.attention_multiply_adds
    assert [2 * part.cache_bytes for part in parts] == [whole.cache_bytes] * 3
