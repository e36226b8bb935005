"""The specification of sampling for all engines, in plain NumPy float32. Each operation below
rounds to float32 once, in the order written, except that weights are summed in float64. ``exp``,
``log`` and the order of sums may differ between engines, and with them the last bits, and a token
whose draw is on the boundary between two candidates.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from potluck.errors import EngineError
from potluck.types.step import TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from potluck.types.step import SamplingParams

    Floats = NDArray[np.float32]

_MASK_32 = 0xFFFFFFFF
_PHILOX_ROUNDS = 10
_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A token, and the requested log-probabilities."""

    token: int
    logprob: float | None
    top: tuple[TokenLogprob, ...]


def sample(
    logits: Floats,
    params: SamplingParams,
    *,
    prompt_tokens: Sequence[int],
    output_tokens: Sequence[int],
    position: int,
    mask: NDArray[np.uint32] | None = None,
) -> Choice:
    """Return the token at ``position``, given the ``logits`` ``[vocab]`` before it.

    ``params`` have been validated. ``mask`` is as in ``TokenMasks``, and allows at least one token.
    Raises ``EngineError`` if a logit is not a finite number.
    """
    _check_finite(logits, position)
    adjusted = adjust_logits(logits, params, prompt_tokens, output_tokens)
    if mask is not None:
        adjusted[~allowed_tokens(mask, len(logits))] = -np.inf
    temperature = np.float32(params.temperature)
    if temperature == 0:  # also values that underflow in float32
        token = int(np.argmax(adjusted))  # the lowest id among equals
    else:
        candidates, weights = keep_candidates(adjusted, params, temperature)
        token = draw(candidates, weights, uniform(params.seed, position))
    if not params.logprobs:
        return Choice(token=token, logprob=None, top=())
    return score(logits, token, params.top_logprobs, position=position)


def score(logits: Floats, token: int, num_top: int, *, position: int) -> Choice:
    """Return ``token``, at ``position``, with its log-probability and those of the ``num_top`` most
    likely tokens.

    Raises as ``sample``.
    """
    _check_finite(logits, position)
    logprobs = log_softmax(logits)
    top = tuple(
        TokenLogprob(token=int(other), logprob=float(logprobs[other]))
        for other in sort_tokens(logits)[:num_top]
    )
    return Choice(token=token, logprob=float(logprobs[token]), top=top)


def _check_finite(logits: Floats, position: int) -> None:
    if not np.isfinite(logits).all():
        raise EngineError(
            f"the model's logits for position {position} are not all finite numbers",
            hint="the weights are damaged or overflow: download or convert the model again",
        )


def adjust_logits(
    logits: Floats,
    params: SamplingParams,
    prompt_tokens: Sequence[int],
    output_tokens: Sequence[int],
) -> Floats:
    """Apply repetition, frequency and presence penalties, then bias, to logits."""
    adjusted = logits.copy()
    repetition = np.float32(params.repetition_penalty)
    for token in {*prompt_tokens, *output_tokens}:
        logit = adjusted[token]
        adjusted[token] = logit / repetition if logit > 0 else logit * repetition
    for token, count in Counter(output_tokens).items():
        adjusted[token] -= np.float32(params.frequency_penalty) * np.float32(count)
        adjusted[token] -= np.float32(params.presence_penalty)
    for token, bias in params.logit_bias:
        adjusted[token] += np.float32(bias)
    return adjusted


def allowed_tokens(mask: NDArray[np.uint32], vocab_size: int) -> NDArray[np.bool_]:
    """Return whether each token's bit is 1, lowest bits first."""
    bits = np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little", count=vocab_size)
    return bits.astype(np.bool_)


def sort_tokens(logits: Floats) -> NDArray[np.int64]:
    """Return token ids by descending logit, and ascending id among equals."""
    return np.argsort(-logits, kind="stable")


def keep_candidates(
    adjusted: Floats, params: SamplingParams, temperature: np.float32
) -> tuple[NDArray[np.int64], Floats]:
    """Return the candidates in sorted order, and ``exp((logit - largest logit) / temperature)`` of
    each.

    ``top_k`` keeps the first k. ``top_p`` keeps the shortest prefix whose weights add up to at
    least ``top_p`` of the sum. ``min_p`` keeps weights of at least ``min_p`` of the largest (1).
    The first candidate is always kept. Sums are in float64: in float32 the error over a flat
    distribution of a large vocabulary would be larger than a candidate's share.
    """
    candidates = sort_tokens(adjusted)[: params.top_k]
    below = adjusted[candidates] - adjusted[candidates[0]]
    with np.errstate(over="ignore"):  # a tiny temperature gives minus infinity, and a weight of 0
        weights = np.exp(below / temperature)
    cumulative = np.cumsum(weights, dtype=np.float64)
    num_kept = 1 + int(np.searchsorted(cumulative, np.float32(params.top_p) * cumulative[-1]))
    candidates, weights = candidates[:num_kept], weights[:num_kept]
    likely = weights >= np.float32(params.min_p) * weights[0]
    return candidates[likely], weights[likely]


def draw(candidates: NDArray[np.int64], weights: Floats, number: np.float32) -> int:
    """Return the first candidate, by id, whose cumulative weight exceeds ``number + 2^-25`` of the
    sum.

    Candidates are ordered by id and not by weight, so that a draw needs no sorting. ``number``
    represents an interval of 2^-24, of which the middle is used: the lower end would assign all of
    the first interval to the lowest id, however small its weight. Such a candidate exists: the
    fraction is at most 1 - 2^-25.
    """
    by_id = np.argsort(candidates)
    middle = np.float64(number) + 2.0**-25
    cumulative = np.cumsum(weights[by_id], dtype=np.float64)
    drawn = np.searchsorted(cumulative, middle * cumulative[-1], side="right")
    return int(candidates[by_id][drawn])


def log_softmax(logits: Floats) -> Floats:
    """Return the natural-log probabilities of the model's own distribution."""
    shifted = logits - logits.max()
    logprobs: Floats = shifted - np.log(np.sum(np.exp(shifted), dtype=np.float32))
    return logprobs


def uniform(seed: int, position: int) -> np.float32:
    """Return a multiple of 2^-24 in [0, 1): the upper 24 bits of the first word of Philox.

    The key is ``seed``, the counter ``position``, low words first.
    """
    counter = (position & _MASK_32, position >> 32, 0, 0)
    word = philox_4x32_10(counter, (seed & _MASK_32, seed >> 32))[0]
    return np.float32(word >> 8) * np.float32(2**-24)


def philox_4x32_10(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Return four random 32-bit words (Salmon et al. 2011, "Parallel random numbers: as easy as 1,
    2, 3", section 3.3).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_PHILOX_ROUNDS):
        product0 = _PHILOX_MULTIPLIERS[0] * c0
        product1 = _PHILOX_MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            product1 >> 32 ^ c1 ^ k0,
            product1 & _MASK_32,
            product0 >> 32 ^ c3 ^ k1,
            product0 & _MASK_32,
        )
        k0 = (k0 + _PHILOX_KEY_INCREMENTS[0]) & _MASK_32
        k1 = (k1 + _PHILOX_KEY_INCREMENTS[1]) & _MASK_32
    return c0, c1, c2, c3
