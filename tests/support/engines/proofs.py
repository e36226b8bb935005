"""What parity tests have shown: which families, from which files, on which engines.

``Stages`` notes what it runs. The hooks of ``tests/parity/conftest.py`` keep what was noted in
tests that passed, and hold it against ``docs/reference/models.json``, from which
``tools/models_reference.py`` makes the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from potluck.models.names import FileKind
from potluck.models.program import build_program
from potluck.models.rope import empty_rope_tables
from potluck.types.backend import features_of
from potluck.types.model import ModelConfig
from potluck.types.program import Shard

RECORD = Path(__file__).parents[3] / "docs" / "reference" / "models.json"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Proof:
    """A model of ``family`` with these features of its program gave ``transformers``' logits."""

    family: str
    files: str
    engine: str
    features: frozenset[str]


@dataclass(slots=True)
class Proofs:
    """Of the test that runs, and of those that passed."""

    noted: set[Proof]
    shown: set[Proof]

    def note(self, config: ModelConfig, file_kind: FileKind, engine: str) -> None:
        """Say that the test that runs uses an engine for a model."""
        program = build_program(
            config,
            Shard.whole(config.num_layers),
            context_tokens=1,
            ropes=empty_rope_tables(config, 1),
        )
        features = frozenset(chain.from_iterable(map(features_of, program.ops)))
        proof = Proof(family=config.family, files=file_kind.value, engine=engine, features=features)
        self.noted.add(proof)


PROOFS = Proofs(noted=set(), shown=set())


def record_of(proofs: Iterable[Proof]) -> dict[str, object]:
    """By family: from which files it was shown on which engines, all features of its programs, and
    those that every program has.
    """
    families: dict[str, dict[str, set[str]]] = {}
    for proof in proofs:
        new = {"shown": set(), "features": set(), "always": set(proof.features)}
        family = families.setdefault(proof.family, new)
        family["shown"].add(f"{proof.files}/{proof.engine}")
        family["features"] |= proof.features
        family["always"] &= proof.features
    return {
        family: {key: sorted(values) for key, values in sorted(sets.items())}
        for family, sets in sorted(families.items())
    }


def recorded() -> dict[str, object]:
    """What the record says."""
    record: dict[str, object] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def write_record(proofs: Iterable[Proof]) -> None:
    """Replace the record."""
    text = json.dumps(record_of(proofs), indent=1) + "\n"
    RECORD.write_text(text, encoding="utf-8")
