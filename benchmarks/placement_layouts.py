"""Alternative layouts of a model, for comparison with the chosen one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from support.cluster.throttled_fleet import ThrottledFleet

_UNIT = "cpu/native"


@dataclass(frozen=True, slots=True)
class Layout:
    """Stages in order: the number of an agent, and the number of its layers."""

    stages: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return ", ".join(f"{layers} on {agent}" for agent, layers in self.stages)

    @property
    def slug(self) -> str:
        """The layout as part of a name."""
        return "-".join(f"{agent}x{layers}" for agent, layers in self.stages)

    def request(self, fleet: ThrottledFleet) -> list[dict[str, object]]:
        """Return what ``deploy`` takes."""
        return [
            {
                "node_id": fleet.agents[agent].node_id,
                "unit_id": _UNIT,
                "num_layers": layers,
            }
            for agent, layers in self.stages
        ]


def layout_of(document: Mapping[str, Any], fleet: ThrottledFleet) -> Layout:
    """Return the layout of a plan or a deployment."""
    return Layout(
        tuple(
            (fleet.agent_of(stage["node_id"]), stage["end_layer"] - stage["start_layer"])
            for stage in document["stages"]
        )
    )


def alternatives(chosen: Layout, num_agents: int, cores: Sequence[float]) -> Iterator[Layout]:
    """Give layouts of the same agents, those that are likely to be good first.

    The chosen one with its boundaries moved, each agent alone, the other orders, and cuts by speed
    and in equal parts over more and fewer agents. Some may not fit, and some come twice.
    """
    num_layers = sum(layers for _, layers in chosen.stages)
    by_speed = sorted(range(num_agents), key=lambda agent: -cores[agent])
    groups = [
        _moved(chosen),
        (Layout(((agent, num_layers),)) for agent in by_speed),
        (
            _cut(num_layers, order, [cores[agent] for agent in order])
            for count in range(2, num_agents + 1)
            for order in itertools.permutations(by_speed[:count])
        ),
        (Layout(order) for order in itertools.permutations(chosen.stages)),
        (
            _cut(num_layers, order, [1.0] * count)
            for count in range(2, num_agents + 1)
            for order in itertools.permutations(by_speed, count)
        ),
    ]
    iterators = [iter(group) for group in groups]
    while iterators:
        for each in list(iterators):
            if (layout := next(each, None)) is None:
                iterators.remove(each)
            else:
                yield layout


def _moved(layout: Layout) -> Iterator[Layout]:
    """Give layouts with two layers moved over a boundary, then with one."""
    for num_moved in (2, 1):
        for index in range(len(layout.stages) - 1):
            for moved in (num_moved, -num_moved):
                stages = list(layout.stages)
                (one, its), (other, others) = stages[index], stages[index + 1]
                if its - moved > 0 and others + moved > 0:
                    stages[index : index + 2] = [(one, its - moved), (other, others + moved)]
                    yield Layout(tuple(stages))


def _cut(num_layers: int, order: Sequence[int], weights: Sequence[float]) -> Layout:
    """Return a cut in proportion to ``weights``, with a layer for each at least."""
    total = sum(weights)
    ends: list[int] = []
    for count in range(1, len(order) + 1):
        end = round(num_layers * sum(weights[:count]) / total)
        least = (ends[-1] if ends else 0) + 1
        ends.append(max(least, min(end, num_layers - (len(order) - count))))
    starts = [0, *ends[:-1]]
    return Layout(
        tuple((agent, end - start) for agent, start, end in zip(order, starts, ends, strict=True))
    )
