"""Generate ``docs/reference/metrics.md``: the metrics of ``/metrics``, from the code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from prometheus_client.registry import Collector

from potluck.api.admission import Admission
from potluck.api.config import ApiLimits
from potluck.api.metrics import ApiMetrics
from potluck.types.gateway import Gateway, ModelMetrics, ModelStatus

_HEAD = """\
# Metrics

Generated from the code by `python -m tools.reference`.

`GET /metrics` on any node answers in the Prometheus text format. Requests and tokens are counted
on the node that the client is connected to. Metrics of a model (sequences, cache blocks, stages,
edges, speeds) come from its coordinator, and every node reports them. A histogram also has the
series `_bucket`, `_count` and `_sum`. Stages and edges are numbered from 0.
"""


class _NoModels:
    """A gateway of a cluster without deployments."""

    def models(self) -> tuple[ModelStatus, ...]:
        return ()

    def metrics(self) -> tuple[ModelMetrics, ...]:
        return ()


def page() -> str:
    """Return the text of the page."""
    rows = [f"| `{name}` | {kind} | {labels} | {text} |" for name, kind, labels, text in _rows()]
    return "\n".join([_HEAD, "| name | type | labels | meaning |", "|---|---|---|---|", *rows, ""])


def _rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield name, type, labels and meaning of every metric."""
    exported = ApiMetrics(cast(Gateway, _NoModels()), Admission(ApiLimits()))
    collectors: list[Collector] = list(vars(exported)["_registry"]._collector_to_names)
    for collector in collectors:
        of_all = vars(collector).get("_labelnames")
        for family in collector.collect():
            labels = vars(family).get("_labelnames", ()) if of_all is None else of_all
            name = f"{family.name}_total" if family.type == "counter" else family.name
            named = ", ".join(f"`{label}`" for label in labels)
            yield name, family.type, named or "–", family.documentation
