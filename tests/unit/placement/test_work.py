"""What parts of a model read and compute: bytes and weights counted by hand."""

from __future__ import annotations

import pytest
from support.placement.units import llama_config, profile_of, work_of

from potluck.placement.work import model_work
from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Quantization
from potluck.types.model import ExpertsConfig
from potluck.types.tensor import TensorFormat

Q8 = 34 / 32
LAYER_WEIGHTS = 2 * 1024 * 1024 + 2 * 256 * 1024 + 3 * 2048 * 1024


def test_a_dense_layer() -> None:
    work = work_of(llama_config(3))
    assert len(work.layers) == 3
    (product,) = work.layers[1].products
    assert product.format is TensorFormat.Q8_0
    assert product.num_weights == LAYER_WEIGHTS
    assert product.num_bytes == LAYER_WEIGHTS * Q8
    assert work.layers[1].cache_bytes == 4 * 128 * 2
    assert work.layers[1].attention_multiply_adds == 16 * 64 * 2


def test_a_head_is_counted_and_an_embedding_is_a_row() -> None:
    work = work_of(llama_config(2))
    (product,) = work.head.products
    assert product.num_weights == 8192 * 1024
    assert work.embedding_row_bytes == 1024 * Q8
    assert work.num_bytes == (2 * LAYER_WEIGHTS + 8192 * 1024) * Q8


def test_a_tied_head_is_counted_in_the_head() -> None:
    (product,) = work_of(llama_config(2, tied_head=True)).head.products
    assert product.num_weights == 8192 * 1024


def test_equal_layers_are_one_object() -> None:
    work = work_of(llama_config(40))
    assert len({id(layer) for layer in work.layers}) == 1


def test_a_mixture_of_formats_makes_layers_differ() -> None:
    work = work_of(llama_config(16), Quantization.Q4_K)
    assert work.dominant_format is TensorFormat.Q4_K
    assert {product.format for product in work.layers[0].products} == {
        TensorFormat.Q4_K,
        TensorFormat.Q6_K,
    }
    assert len({id(layer) for layer in work.layers}) == 2


def test_experts_are_counted_apart_from_what_all_tokens_pass() -> None:
    experts = ExpertsConfig(
        num_experts=8,
        num_experts_per_token=2,
        width=512,
        norm_topk_prob=True,
    )
    mixed, dense = work_of(llama_config(2, experts=experts, expert_layers=(0,))).layers
    by_experts = {each.num_experts: each for each in mixed.products if each.num_experts > 1}
    assert by_experts[8].num_weights == 8 * 3 * 512 * 1024
    assert by_experts[8].num_chosen == 2
    assert all(each.num_experts == 1 for each in dense.products)


def test_a_missing_tensor_raises() -> None:
    profile = profile_of(llama_config(2))
    del profile.tensors["layers.1.attn.q.weight"]  # type: ignore[attr-defined]
    with pytest.raises(KeyError):
        model_work(profile, Quantization.NONE, lambda info: info.num_bytes)


def test_the_shape_says_all_but_depth() -> None:
    shape = work_of(llama_config(2)).shape(Arithmetic.EXACT)
    assert work_of(llama_config(30)).shape(Arithmetic.EXACT) == shape
    others = {
        work_of(llama_config(2)).shape(Arithmetic.AMX),
        work_of(llama_config(2, hidden_size=2048)).shape(Arithmetic.EXACT),
        work_of(llama_config(2, vocab_size=1000)).shape(Arithmetic.EXACT),
        work_of(llama_config(2), Quantization.NONE).shape(Arithmetic.EXACT),
        work_of(llama_config(2, window=128)).shape(Arithmetic.EXACT),
    }
    assert len(others | {shape}) == 6
