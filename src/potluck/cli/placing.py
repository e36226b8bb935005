"""What ``deploy`` and ``plan`` have in common: options, and what an agent is asked with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from potluck.cli.options import Quant, settings
from potluck.cluster.agent.control import ask
from potluck.cluster.agent.state import StateDirectory
from potluck.errors import ParameterError
from potluck.placement.layout import LayoutNode, parse_layout, resolve_layout
from potluck.types.arithmetic import ArithmeticChoice
from potluck.types.cluster import NodeId, UnitId
from potluck.types.placement import DEFAULT_NUM_STREAMS, Objective
from potluck.types.unit import Role

CacheOption = Annotated[
    int | None,
    typer.Option(
        "--cache",
        min=1,
        help="Tokens that all sequences share in the cache. Default: four full contexts.",
        show_default=False,
    ),
]
ObjectiveOption = Annotated[
    Objective | None,
    typer.Option(
        "--for",
        help="latency: least time per token of one stream; units that would slow it down are left "
        "out. throughput: most tokens per second of --streams together. memory: each unit in "
        "proportion to its memory. Default: latency.",
        show_default=False,
    ),
]
StreamsOption = Annotated[
    int | None,
    typer.Option(
        "--streams",
        metavar="N",
        help="How many streams decode at once where throughput counts. "
        f"Default: {DEFAULT_NUM_STREAMS}.",
        show_default=False,
    ),
]
LayoutOption = Annotated[
    str | None,
    typer.Option(
        "--layout",
        metavar="NODE[/UNIT]=LAYERS,…",
        help="Place the layers like this and look for nothing better, as in "
        "desktop=24,board/cpu/native=8; NODE is an id or a name.",
        show_default=False,
    ),
]


def deploy_params(
    model: str,
    *,
    name: str | None = None,
    context: int | None,
    cache: int | None,
    states: int | None,
    quant: Quant,
    mmap: bool,
    arithmetic: ArithmeticChoice | None,
    objective: Objective | None,
    streams: int | None,
) -> dict[str, Any]:
    """Return what is asked for as the fields of ``calls.Deploy``, less the layout.

    A path is made absolute, for other processes to read it. Raise ``ParameterError`` for an empty
    name.
    """
    if name is not None and not name.strip():
        raise ParameterError("name", "--name is empty", hint="leave it out, or give a name")
    chosen = settings()
    path = Path(model).expanduser()
    is_path = model != "demo" and path.exists()
    return {
        "model": str(path.resolve()) if is_path else model,
        "model_id": name or (_name_of(path.resolve()) if is_path else model),
        "context_tokens": context,
        "cache_tokens": cache,
        "num_states": states,
        "default_states": chosen.states,
        "quantization": None if quant.quantization is None else quant.quantization.value,
        "is_mapped": mmap,
        "arithmetic": (arithmetic or chosen.arithmetic).value,
        "objective": (objective or chosen.objective).value,
        "num_streams": chosen.streams if streams is None else streams,
    }


def _name_of(path: Path) -> str:
    return path.stem if path.suffix == ".gguf" else path.name


def layout_params(state: StateDirectory, layout: str | None) -> dict[str, Any]:
    """Return the layout that ``--layout`` asks for, by the nodes of the running cluster.

    Raise ``ParameterError`` where it has another form or names what is not there.
    """
    if layout is None:
        return {}
    written = parse_layout(layout)
    stages = resolve_layout(written, [*_layout_nodes(cluster_state(state)["nodes"])])
    return {
        "layout": [
            {
                "node_id": stage.node_id,
                "unit_id": stage.unit_id,
                "num_layers": stage.num_layers,
            }
            for stage in stages
        ]
    }


def cluster_state(state: StateDirectory) -> dict[str, Any]:
    """Return the document of schema ``potluck.cluster/1``."""
    return result_of(state, "state", {})


def result_of(state: StateDirectory, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Ask the agent and return its result. Raise what it raised."""
    result: dict[str, Any] = {}
    for document in ask(state.control_socket, method, params):
        result = document.get("result") or {}
    return result


def _layout_nodes(nodes: Sequence[dict[str, Any]]) -> list[LayoutNode]:
    return [
        LayoutNode(
            node_id=NodeId(node["node_id"]),
            name=node["name"],
            units=tuple(UnitId(unit["unit_id"]) for unit in node["units"]),
            serving=tuple(
                UnitId(unit["unit_id"])
                for unit in node["units"]
                if unit["role"] == Role.SERVES.value
            ),
        )
        for node in nodes
        if "units" in node
    ]
