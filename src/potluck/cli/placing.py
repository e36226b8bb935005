"""What ``deploy`` and ``plan`` have in common: options, and what an agent is asked with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from potluck.cli.options import Quant, resolve_draft, settings
from potluck.cluster.agent.asking import absolute, ask
from potluck.errors import ParameterError
from potluck.types.choices import DEFAULT_NUM_STREAMS, ArithmeticChoice, Objective
from potluck.types.cluster import NodeId, UnitId
from potluck.types.node_names import NodeNames, names_of
from potluck.types.ranges import MAX_WHOLE, require_number
from potluck.types.unit import Role

if TYPE_CHECKING:
    from potluck.cluster.agent.state import StateDirectory
    from potluck.placement.layout import LayoutNode

CacheOption = Annotated[
    int | None,
    typer.Option(
        "--cache",
        min=1,
        help="Cache size in tokens, shared by all sequences. Default: four full contexts.",
        show_default=False,
    ),
]
ObjectiveOption = Annotated[
    Objective | None,
    typer.Option(
        "--for",
        help="latency: minimize the time per token of a single stream, without units that would "
        "slow it down. throughput: maximize the total tokens per second of --streams "
        "concurrent streams. memory: fill every unit in proportion to its memory. Default: "
        "latency.",
        show_default=False,
    ),
]
StreamsOption = Annotated[
    int | None,
    typer.Option(
        "--streams",
        metavar="N",
        help="Number of concurrent streams to plan for with --for throughput. Default: "
        f"{DEFAULT_NUM_STREAMS}.",
        show_default=False,
    ),
]
TensorParallelOption = Annotated[
    str | None,
    typer.Option(
        "--tensor-parallel",
        metavar="auto|off|N",
        help="Number of units that share each stage's matrices. auto: what is predicted to be "
        "fastest, on fast links; off: one unit per stage; N: N units per stage. Default: "
        "auto.",
        show_default=False,
    ),
]
LayoutOption = Annotated[
    str | None,
    typer.Option(
        "--layout",
        metavar="NODE[/UNIT]=LAYERS,…",
        help="Use this placement instead of searching for the best one, for example "
        "desktop=24,board/cpu/native=8; NODE is a node id or host name. desktop*3+board=24 "
        "splits the matrices of 24 layers between both nodes in a ratio of three to one.",
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
    tensor_parallel: str | None,
) -> dict[str, Any]:
    """Return what is asked for as the fields of ``calls.Deploy``, less the layout.

    A path is made absolute, for other processes to read it. Raise ``ParameterError`` for an empty
    name.
    """
    if name is not None and not name.strip():
        raise ParameterError("name", "--name is empty", hint="omit it, or give a name")
    chosen = settings()
    path = Path(model).expanduser()
    is_path = model != "demo" and path.exists()
    return {
        "model": absolute(path) if is_path else model,
        "model_id": name,
        "context_tokens": context,
        "cache_tokens": cache,
        "num_states": states,
        "default_states": chosen.states,
        "quantization": None if quant.quantization is None else quant.quantization.value,
        "is_mapped": mmap,
        "arithmetic": (arithmetic or chosen.arithmetic).value,
        "objective": (objective or chosen.objective).value,
        "num_streams": chosen.streams if streams is None else streams,
        "tensor_parallel": parse_tensor_parallel(
            str(chosen.tensor_parallel) if tensor_parallel is None else tensor_parallel
        ),
    }


def draft_param(option: str | None) -> str:
    """Return where drafts come from, as ``calls.Deploy`` has it: the option, else the setting.

    What looks like a path and exists is made absolute, for other processes to read it. A name
    without a slash may be that of a deployed model.
    """
    draft = resolve_draft(option)
    path = Path(draft).expanduser()
    looks_like_path = "/" in draft or path.suffix.lower() == ".gguf"
    return absolute(path) if looks_like_path and path.exists() else draft


def parse_tensor_parallel(text: str) -> int | None:
    """Return what ``--tensor-parallel`` asks for as ``Preferences`` has it.

    Raise ``ParameterError`` if it is neither auto nor off nor a number of units.
    """
    if text == "auto":
        return None
    if text == "off":
        return 1
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_WHOLE))
    number: int | str = int(text) if is_number else text
    require_number("tensor_parallel", number)
    return int(number)


def layout_params(state: StateDirectory, layout: str | None) -> dict[str, Any]:
    """Return the layout that ``--layout`` asks for, by the nodes of the running cluster.

    Raise ``ParameterError`` where it has another form or names what is not there.
    """
    if layout is None:
        return {}
    from potluck.placement.layout import parse_layout, resolve_layout

    written = parse_layout(layout)
    stages = resolve_layout(written, [*_layout_nodes(cluster_state(state)["nodes"])])
    return {
        "layout": [
            {
                "node_id": stage.node_id,
                "unit_id": stage.unit_id,
                "num_layers": stage.num_layers,
                "part": None if stage.part is None else asdict(stage.part),
            }
            for stage in stages
        ]
    }


def cluster_state(state: StateDirectory) -> dict[str, Any]:
    """Return the document of schema ``potluck.cluster/1``."""
    return result_of(state, "state", {})


def node_names(directory: StateDirectory) -> NodeNames:
    """Return what the nodes of the cluster are called now. Blocking."""
    return names_of(cluster_state(directory)["nodes"])


def result_of(state: StateDirectory, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Ask the agent and return its result. Raise what it raised."""
    result: dict[str, Any] = {}
    for document in ask(state.control_socket, method, params):
        result = document.get("result") or {}
    return result


def _layout_nodes(nodes: Sequence[dict[str, Any]]) -> list[LayoutNode]:
    from potluck.placement.layout import LayoutNode

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
