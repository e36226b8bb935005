"""Cases of parity tests: small models, and what of them a configuration could forget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from numpy.typing import NDArray
from support.engines.stages import Stages
from support.models.changes import Change
from support.models.random_models import RandomModel
from support.models.state_dict_source import StateDictSource

from potluck.catalog import describe_model, open_weights
from potluck.types.program import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, and what configurations that forgot one of its features would say.

    ``has_gguf``: a GGUF file can say all that the configuration does.
    """

    name: str
    family: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    forgotten: Mapping[str, Change] = field(default_factory=dict)
    has_gguf: bool = True

    def __str__(self) -> str:
        return self.name


AnyCase = TypeVar("AnyCase", bound=Case)


def case_named(cases: Iterable[AnyCase], name: str) -> AnyCase:
    """The case of that name."""
    (found,) = (case for case in cases if case.name == name)
    return found


def forgotten_in(cases: Iterable[Case]) -> list[ParameterSet]:
    """Every case with each of its features that can be forgotten: ``(case, what)``."""
    return [
        pytest.param(case, what, id=f"{case.name}-{what.replace(' ', '-')}")
        for case in cases
        for what in case.forgotten
    ]


def made_once(
    tmp_path_factory: pytest.TempPathFactory, make: Callable[[AnyCase, Path], RandomModel]
) -> Callable[[AnyCase], RandomModel]:
    """What gives the model of a case, which ``make`` makes in a directory of its own, once."""
    made: dict[str, RandomModel] = {}

    def model_of(case: AnyCase) -> RandomModel:
        if case.name not in made:
            made[case.name] = make(case, tmp_path_factory.mktemp("model"))
        return made[case.name]

    return model_of


def logits_of_files(path: Path, tokens: list[int], **options: Any) -> NDArray[np.float32]:
    """Of the model at ``path``, by its own files alone, one token a step."""
    description = describe_model(str(path))
    whole = Shard.whole(description.config.num_layers)
    with (
        closing(open_weights(description, [whole])) as source,
        Stages(description.config, source, file_kind=description.files.kind, **options) as stages,
    ):
        return stages.logits_at_all_positions(tokens)


def logits_forgetting(model: RandomModel, change: Change, tokens: list[int]) -> NDArray[np.float32]:
    """Of the model with ``change`` made to its configuration, after the last of ``tokens``."""
    forgetful = change(describe_model(str(model.directory)).config)
    with Stages(forgetful, StateDictSource(model.state)) as stages:
        last: NDArray[np.float32] = stages.logits(stages.slice(0, tokens))[0]
        return last
