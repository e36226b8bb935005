"""The draws of the self-test: that they are the specification's, and that mistakes show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.engines.fake_backends.behaviour import right_results
from support.reference.sampling import sample

from potluck.engines.native.trial import _maker
from potluck.engines.self_test import drawn_tokens
from potluck.kernels import available_isas
from potluck.probe.cases import draw_case as case
from potluck.probe.cases import self_test
from potluck.types.step import SamplingParams


def reference_tokens(*, masks: bool = True, **changes: float) -> list[int]:
    logits = np.array(case.logits(), dtype=np.float32)
    words = -(-case.VOCAB_SIZE // 32)
    bits = [case.is_allowed(token) for token in range(32 * words)]
    mask = np.packbits(bits, bitorder="little").view("<u4")
    tokens = []
    for number, draw in enumerate(case.all_draws()):
        params = replace(draw.params, **changes)  # type: ignore[arg-type]
        choice = sample(
            logits[draw.row],
            params,
            prompt_tokens=(number,),
            output_tokens=(),
            position=1,
            mask=mask if draw.has_mask and masks else None,
        )
        tokens.append(choice.token)
    return tokens


def test_the_tokens_are_those_of_the_specification() -> None:
    assert reference_tokens() == list(case.EXPECTED)
    assert len(set(case.EXPECTED)) > 30


@pytest.mark.parametrize("isa", available_isas())
def test_every_instruction_set_draws_them(isa: str) -> None:
    assert drawn_tokens(_maker(isa, 2)) == [[float(token) for token in case.EXPECTED]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"top_k": None},
        {"top_p": 1.0},
        {"min_p": 0.0},
        {"temperature": 1.0},
        {"masks": False},
    ],
    ids=str,
)
def test_nothing_that_is_left_out_goes_unnoticed(changes: dict[str, float]) -> None:
    tokens = [[float(token) for token in reference_tokens(**changes)]]  # type: ignore[arg-type]
    assert "the drawn tokens[0][" in self_test.deviation({**right_results(), "draws": tokens})
    assert self_test.deviation(right_results()) == ""
    missing = {name: value for name, value in right_results().items() if name != "draws"}
    assert "the drawn tokens" in self_test.deviation(missing)


def test_parameters_take_the_ways_of_the_sampler() -> None:
    """Some of more tokens than are sorted, and some of fewer."""
    parameters: list[SamplingParams] = [draw.params for draw in case.all_draws()]
    assert any((each.top_k or 0) > 512 for each in parameters)
    assert any(0 < (each.top_k or 0) <= 64 for each in parameters)
