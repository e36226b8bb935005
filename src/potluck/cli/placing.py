"""Common parts of ``deploy`` and ``plan``: options, and the request to the agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from potluck.cli.options import settings
from potluck.cli.settings import configured
from potluck.cli.spec_options import spec_params
from potluck.cluster.agent.asking import absolute, ask
from potluck.errors import ParameterError
from potluck.types.cluster import NodeId, UnitId
from potluck.types.node_names import NodeNames, names_of
from potluck.types.unit import Role

if TYPE_CHECKING:
    from potluck.cluster.agent.state import StateDirectory
    from potluck.placement.layout import LayoutNode


def deploy_params(
    model: str, given: Mapping[str, Any], *, name: str | None = None
) -> dict[str, Any]:
    """Return what is asked for as the fields of ``Deploy``, less the layout.

    ``given`` are the options of settings by field. A path is made absolute, for other processes to
    read it. Raise ``ParameterError`` for an empty name, or an invalid value.
    """
    if name is not None and not name.strip():
        raise ParameterError("name", "--name is empty", hint="omit it, or give a name")
    chosen = settings()
    params = spec_params(given, configured(chosen))
    return {
        **_disk_only_with_prefix_cache(params, is_given=given.get("cache_disk_bytes") is not None),
        "model": absolute(model),
        "model_id": name,
        "default_states": chosen.states,
    }


def _disk_only_with_prefix_cache(params: dict[str, Any], *, is_given: bool) -> dict[str, Any]:
    """Return the fields with nothing on disk if the prefix cache is off.

    Raise ``ParameterError`` if the option asks for both.
    """
    if params["prefix_cache"] or not params["cache_disk_bytes"]:
        return params
    if is_given:
        raise ParameterError(
            "cache_disk",
            "--cache-disk needs the prefix cache, which is off",
            hint="omit --cache-disk, or turn the prefix cache on with --prefix-cache",
        )
    return {**params, "cache_disk_bytes": 0}


def layout_params(state: StateDirectory, layout: str | None) -> dict[str, Any]:
    """Return the layout that ``--layout`` asks for, by the nodes of the running cluster.

    Raise ``ParameterError`` where it has another form or names what is not there.
    """
    if layout is None:
        return {}
    from potluck.placement.layout import parse_layout, resolve_layout

    written = parse_layout(layout)
    stages = resolve_layout(written, [*_layout_nodes(cluster_state(state)["nodes"])])
    return {"layout": msgspec.to_builtins(stages)}


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
