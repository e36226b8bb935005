"""What parity tests have shown: which families, from which files, on which engines.

``Stages`` notes what it runs. The hooks of ``tests/parity/conftest.py`` keep what was noted in tests
that passed, and hold it against ``docs/reference/models.json``, from which ``tools/models_reference``
makes the page.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from potluck.models.names import FileKind

RECORD = Path(__file__).parents[2] / "docs" / "reference" / "models.json"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Proof:
    """A model of ``family`` gave the logits of ``transformers``."""

    family: str
    files: str
    engine: str


@dataclass(slots=True)
class Proofs:
    """Of the test that runs, and of those that passed."""

    noted: set[Proof]
    shown: set[Proof]

    def note(self, family: str, file_kind: FileKind, engine: object) -> None:
        """Say that the test that runs uses an engine for a model."""
        name = type(engine).__name__.removesuffix("Engine").lower()
        self.noted.add(Proof(family=family, files=file_kind.value, engine=name))


PROOFS = Proofs(noted=set(), shown=set())


def recorded() -> set[Proof]:
    """What the record says."""
    rows = json.loads(RECORD.read_text(encoding="utf-8"))["proofs"]
    return {Proof(**row) for row in rows}


def write_record(proofs: set[Proof]) -> None:
    """Replace the record."""
    rows = [
        {"family": each.family, "files": each.files, "engine": each.engine}
        for each in sorted(proofs)
    ]
    RECORD.write_text(json.dumps({"proofs": rows}, indent=1) + "\n", encoding="utf-8")
