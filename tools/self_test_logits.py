"""Prints src/potluck/probe/cases/program_case_logits.json, with the reference engine.

python tools/self_test_logits.py > src/potluck/probe/cases/program_case_logits.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.reference.engine import ReferenceEngine

from potluck.engines.self_test import program_logits
from potluck.types.engine import NO_EXPERTS
from potluck.types.program import Program


class _Reference(ReferenceEngine):
    """A reference engine with the other methods of a loadable engine."""

    weights_bytes = 0
    expert_use = NO_EXPERTS

    def warm_up(self) -> None:
        """Do nothing, because nothing is compiled."""


def reference_logits() -> list[list[float]]:
    """Return the logits rounded to six digits, a millionth of the error that a backend may make."""

    def make_engine(
        program: Program, *, num_blocks: int, max_step_tokens: int, num_states: int = 0
    ) -> _Reference:
        return _Reference(program, num_blocks=num_blocks, num_states=num_states)

    return [[float(f"{value:.6g}") for value in row] for row in program_logits(make_engine)]


if __name__ == "__main__":
    rows = (json.dumps(row) for row in reference_logits())
    print("[" + ",\n ".join(rows) + "]")
