"""From vectors to embeddings and scores."""

from __future__ import annotations

import numpy as np
import pytest

from potluck.errors import ParameterError
from potluck.scheduling.vectors import check_dimensions, embedding_of, score_of
from potluck.types.model import EmbeddingConfig, RerankConfig
from potluck.types.step import Pooling

PLAIN = EmbeddingConfig(pooling=Pooling.MEAN, is_normalized=False)
NORMALIZED = EmbeddingConfig(pooling=Pooling.MEAN, is_normalized=True)


def stored(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def test_an_embedding_is_cut_and_then_normalized() -> None:
    vector = stored(3, 4, 12)
    np.testing.assert_array_equal(embedding_of(vector, PLAIN), [3, 4, 12])
    np.testing.assert_array_equal(embedding_of(vector, PLAIN, 1), [3])
    np.testing.assert_allclose(embedding_of(vector, NORMALIZED), np.array([3, 4, 12]) / 13)
    short = embedding_of(vector, NORMALIZED, 2)
    np.testing.assert_allclose(short, [0.6, 0.8])
    assert short.dtype == np.float32


def test_a_vector_without_a_length_or_with_a_great_one() -> None:
    np.testing.assert_array_equal(embedding_of(stored(0, 0), NORMALIZED), [0, 0])
    np.testing.assert_allclose(embedding_of(stored(3e38, 0), NORMALIZED), [1, 0])
    np.testing.assert_allclose(embedding_of(stored(1e-45, 0), NORMALIZED), [1, 0])


def test_dimensions() -> None:
    for dimensions in (None, 1, 8):
        check_dimensions(dimensions, 8)
    for dimensions in (0, -1, 9):
        with pytest.raises(ParameterError, match="dimensions"):
            check_dimensions(dimensions, 8)


@pytest.mark.parametrize(
    ("values", "positive", "score"),
    [
        ((0.0,), 0, 0.5),
        ((2.0,), 0, 1 / (1 + np.exp(-2.0))),
        ((1e30,), 0, 1.0),
        ((-1e30,), 0, 0.0),
        ((1.0, 3.0), 0, 1 / (1 + np.exp(2.0))),
        ((1.0, 3.0), 1, 1 / (1 + np.exp(-2.0))),
        ((-1e30, 1e30), 0, 0.0),
    ],
)
def test_scores(values: tuple[float, ...], positive: int, score: float) -> None:
    config = RerankConfig(pooling=Pooling.LAST, positive_label=positive)
    assert score_of(stored(*values), config) == pytest.approx(score)
