"""Texts of the native engine through ``potluck.Model``, against transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray
from support.engines.parity import MIN_DECIDED_SHARE, decided_share, rms
from support.engines.proofs import PROOFS
from support.models.random_models import RandomModel, torch_logits

import potluck
from potluck.catalog.description import describe_model

NUM_NEW = 64
PROMPT = "Once upon a time there was a lazy dog, and 从前有一个小女孩 in the garden 😀."


def assert_continues_as_transformers(
    path: Path,
    reference: RandomModel,
    tokenizer_json: str | None,
    *,
    limit: float,
    stages: int = 2,
) -> None:
    """``reference`` computes in float32 and holds what the files stand for.

    ``limit`` is that of ``native_error_limit``. Without ``tokenizer_json`` the prompt's tokens are
    those that the model's files give.
    """
    with potluck.Model.open(str(path), stages=stages, num_threads=2) as model:
        generation = model.generate(
            PROMPT,
            max_tokens=NUM_NEW,
            ignore_eos=True,
            temperature=0.0,
            repetition_penalty=1.0,
            logprobs=True,
            top_logprobs=20,
        )
        result = generation.result()
    description = describe_model(str(path))
    PROOFS.note(description.config, description.files.kind, "native")
    if tokenizer_json is not None:
        library = tokenizers.Tokenizer.from_str(tokenizer_json)
        assert list(result.prompt_tokens) == library.encode(PROMPT).ids
    tokens = [piece.token for piece in result.pieces]
    assert len(tokens) == NUM_NEW
    assert len(set(tokens)) >= 10, "a text that repeats itself decides little"

    logits = torch_logits(reference, [*result.prompt_tokens, *tokens])[-NUM_NEW - 1 : -1]
    # An error of six standard deviations: rms is what the limit is for, and the limit is twice it.
    tolerance = 3 * limit * rms(logits)
    share = decided_share(logits, tolerance)
    assert share >= MIN_DECIDED_SHARE, f"only {share:.0%} of the positions are decided"
    is_decided = [decided_share(row[None], tolerance) == 1 for row in logits]
    likeliest = [int(token) for token in logits.argmax(axis=1)]
    for decided, token, expected in zip(is_decided, tokens, likeliest, strict=True):
        assert token == expected or not decided

    expected_logprobs = log_softmax(logits)
    errors = np.array(
        [
            [top.logprob - float(row[top.token]) for top in piece.top]
            for piece, row in zip(result.pieces, expected_logprobs, strict=True)
        ]
    )
    assert errors.shape == (NUM_NEW, 20)
    # The sum below the fraction has an error of its own, no larger than a logit's.
    assert float(np.abs(errors).max()) <= 2 * tolerance
    assert float(np.sqrt(np.mean(errors**2))) <= limit * rms(logits)


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    result: NDArray[np.float64] = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return result
