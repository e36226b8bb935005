"""The preprocessing steps of a ``tokenizers`` model.

A step is represented as in tokenizer.json.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

from potluck.text.pieces import SPACE_MARK

if TYPE_CHECKING:
    import tokenizers

Step: TypeAlias = dict[str, Any]


def normalizer_steps(model: tokenizers.Tokenizer) -> tuple[Step, ...]:
    """Yield the steps that change the text, in no particular order."""
    return _steps(model.normalizer, "normalizers")


def pre_tokenizer_steps(model: tokenizers.Tokenizer) -> tuple[Step, ...]:
    """Yield the steps that split the text into words, in no particular order."""
    return _steps(model.pre_tokenizer, "pretokenizers")


def marks_spaces(step: Step) -> bool:
    """Return whether the step replaces spaces with SentencePiece's marks."""
    if step["type"] == "Replace":
        return bool(step["pattern"] == {"String": " "} and step["content"] == SPACE_MARK)
    return bool(step["type"] == "Metaspace" and step["replacement"] == SPACE_MARK)


def _steps(component: Any, several: str) -> tuple[Step, ...]:
    found: list[Step] = []
    pending = [] if component is None else [json.loads(component.__getstate__())]
    while pending:
        step = pending.pop()
        if step["type"] == "Sequence":
            pending += step[several]
        else:
            found.append(step)
    return tuple(found)
