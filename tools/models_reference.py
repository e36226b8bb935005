"""Generate ``docs/reference/models.md``.

    python -m tools.models_reference > docs/reference/models.md

What the tests have shown is in ``docs/reference/models.json`` (``tests/parity/conftest.py`` writes
it), and which published models a family covers in ``docs/reference/published-models.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from potluck.engines.backends import BACKENDS
from potluck.models.family import Family, all_families
from potluck.types.backend import BackendSpec
from potluck.types.choices import Quantization
from potluck.types.tensor import TensorFormat

DIRECTORY = Path(__file__).parents[1] / "docs" / "reference"
_NOTE = "<!-- Made by tools/models_reference.py; edit that, or the data beside this file. -->"


def page(shown: Mapping[str, Any], published: Mapping[str, str]) -> str:
    """Return the text of the page."""
    return "\n".join((*_families(shown, published), "", *_formats())) + "\n"


def _families(shown: Mapping[str, Any], published: Mapping[str, str]) -> Iterator[str]:
    yield _NOTE
    yield "# Models that run"
    yield ""
    yield (
        "Each family was compared with `transformers`, logit by logit, on small models with random "
        "weights: in the reference engine and, where the table says so, in the native one (CPUs). "
        "GGUF files were compared with the same weights in safetensors. A GPU backend runs a "
        "family if it supports all of its operations; missing operations are listed, after *some* "
        "if only some of the family's models need them."
    )
    yield ""
    backends = _gpu_backends()
    columns = ["published models", "`model_type`", "safetensors", "GGUF", *backends]
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for family in all_families():
        if (proof := shown.get(family.name)) is None:
            continue
        cells = [
            published[family.name],
            ", ".join(f"`{each}`" for each in _model_types(family)),
            _engines(proof["shown"], "hugging_face"),
            _engines(proof["shown"], "gguf") if _has_gguf(family) else "as another family",
            *(_runs(spec, proof) for spec in backends.values()),
        ]
        yield f"| {' | '.join(cells)} |"


def _gpu_backends() -> dict[str, BackendSpec]:
    """Return one backend of each engine except the native one, by the engine's name."""
    return {
        spec.name.partition(":")[0]: spec
        for spec in BACKENDS
        if spec.engine and not spec.abilities.is_built_in
    }


def _model_types(family: Family) -> Iterator[str]:
    yield from dict.fromkeys((family.name, *family.aliases, *family.wrappers))


def _has_gguf(family: Family) -> bool:
    return bool(family.gguf_architectures)


def _engines(shown: list[str], files: str) -> str:
    engines = [each.removeprefix(f"{files}/") for each in shown if each.startswith(f"{files}/")]
    return ", ".join(engines) or "no"


def _runs(spec: BackendSpec, proof: Mapping[str, Any]) -> str:
    """Return whether a backend computes a family, or the models of it that lack something."""
    missing = set(proof["features"]) - spec.abilities.features
    named = sorted(
        each for each in missing if " " not in each or each.partition(" ")[0] not in missing
    )
    if not missing:
        return "yes"
    return f"{'no' if missing & set(proof['always']) else 'some'}: {', '.join(named)}"


def _formats() -> Iterator[str]:
    yield "## Formats of weights"
    yield ""
    yield (
        "Formats without kernels are converted to Q8_0 while loading. The names are those of GGUF; "
        "docs/guides/models.md says to which of them the formats of other files are converted."
    )
    yield ""
    backends = _gpu_backends()
    columns = ["format", "native (CPUs)", *backends, "`--quant`"]
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    targets = {each.value for each in Quantization}
    for each in TensorFormat:
        cells = [
            each.name,
            "kernels" if each.has_kernels else "as Q8_0",
            *("kernels" if each in spec.abilities.formats else "no" for spec in backends.values()),
            f"`{each.label}`" if each.label in targets else "",
        ]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the page."""
    shown, published = (
        json.loads((DIRECTORY / name).read_text(encoding="utf-8"))
        for name in ("models.json", "published-models.json")
    )
    sys.stdout.write(page(shown, published))


if __name__ == "__main__":
    main()
