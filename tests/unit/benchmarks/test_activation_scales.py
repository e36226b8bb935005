"""How activations are rounded, and what the engine computes with them."""

from __future__ import annotations

import numpy as np
import pytest
from activation_scales import activations_in_groups, demo_losses, log_softmax, quantized
from support.reference import ops as reference_ops


def test_every_group_has_a_scale_of_its_own() -> None:
    x = np.array([[127.0, 0.4, 0.6, 1.5, 0.0, 1.27, 0.634, 0.636]], np.float32)
    # The first group has the scale 1, the second 0.01; half-way goes to the even number.
    expected = [[127, 0, 1, 2, 0, 1.27, 0.63, 0.64]]
    np.testing.assert_allclose(quantized(x, 4), expected, rtol=1e-6)
    np.testing.assert_allclose(quantized(x, None), [[127, 0, 1, 2, 0, 1, 1, 1]], rtol=1e-6)


def test_a_last_group_may_be_shorter_and_a_group_zero() -> None:
    x = np.array([[0.0, 0.0, 2.0]], np.float32)
    assert quantized(x, 2).tolist() == [[0.0, 0.0, 2.0]]


def test_the_engine_rounds_before_products() -> None:
    x = np.array([[127.0, 0.4]], np.float32)
    weight = np.array([[0.0, 10.0]], np.float32)
    with activations_in_groups(lambda each: quantized(each, None)):
        assert reference_ops.linear(x, weight, None).tolist() == [[0.0]]
        assert reference_ops.head(x, weight, np.zeros(0, np.int64), 1.0, None).tolist() == [[0.0]]
    assert reference_ops.linear(x, weight, None).tolist() == [[4.0]]


def test_log_softmax() -> None:
    logits = np.array([[0.0, np.log(3.0)]], np.float32)
    np.testing.assert_allclose(log_softmax(logits), np.log([[0.25, 0.75]]), rtol=1e-6)


@pytest.mark.slow
def test_loss_of_the_demo_model() -> None:
    # Of one document; over all, the model's card says 0.392.
    loss = demo_losses(None, 1)["float"]
    assert 0.2 < loss["nats_per_token"] < 0.7
    assert loss["perplexity"] == pytest.approx(np.exp(loss["nats_per_token"]))
