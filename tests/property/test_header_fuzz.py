"""Spoiled headers are read or refused: no crash, no hang, no memory beyond their size.

``benchmarks/fuzz_headers.py`` does the same for 100,000 of them.
"""

from __future__ import annotations

import tracemalloc
from collections import Counter

import pytest
from support.formats.header_cases import run_case
from support.formats.header_mutations import Kind, mutated

NUM_CASES = 1000
"""Of each kind: 2 s."""

# Ways of being refused that so many cases must find, or the mutations do not reach the checks.
LEAST_REFUSALS = {Kind.SAFETENSORS: 16, Kind.INDEX: 9, Kind.GGUF: 32}


@pytest.mark.slow
@pytest.mark.parametrize("kind", Kind)
def test_mutated_headers(kind: Kind) -> None:
    refusals: Counter[str | None] = Counter()
    tracemalloc.start()
    try:
        for seed in range(NUM_CASES):
            outcome = run_case(kind, mutated(kind, seed))
            assert not outcome.problem, f"mutated({kind}, {seed}): {outcome.problem}"
            refusals[outcome.refusal] += 1
    finally:
        tracemalloc.stop()
    assert 0.1 < refusals[None] / NUM_CASES < 0.5
    assert len(refusals) - 1 >= LEAST_REFUSALS[kind]
