"""``potluck serve``: ``up`` and ``deploy`` in one command, in the foreground until Ctrl-C."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from potluck.cli.cluster import deploy, deploy_request, deployed
from potluck.cli.options import state_directory
from potluck.cli.output import note
from potluck.cli.placing import node_names
from potluck.cli.spec_options import declare_parameters
from potluck.cli.tables import stage_lines
from potluck.cli.up import run_agent, up
from potluck.errors import PotluckError
from potluck.types.cluster import DeploymentId
from potluck.types.deployment_spec import DeploymentSpec, settings_of
from potluck.types.quantities import format_count

if TYPE_CHECKING:
    from potluck.cluster.agent.service import Agent
    from potluck.cluster.agent.state import StateDirectory

_NOT_OF_SERVE = frozenset({"no_http", "json"})
"""``serve`` is for clients, and prints their address."""

_OF_BOTH = frozenset({"no_store"})
"""An option of ``up`` that ``deploy`` also has."""

_UNDEPLOY_SECONDS = 20.0
"""For other nodes to free their stages; a second Ctrl-C ends the wait."""

_LOOK_SECONDS = 0.1


def serve(**options: Any) -> None:
    """Start a node, deploy MODEL and print the address of the HTTP API.

    This is potluck up and potluck deploy in one command. With --join or --lan the model is deployed
    across that cluster, otherwise on this node alone. Ctrl-C stops both; potluck down hands the
    model over to other nodes first.
    """
    names_of_up = inspect.signature(up).parameters.keys() - _NOT_OF_SERVE
    all_options = {**options, "no_store": options["keep_weights"]}
    of_agent = {name: all_options[name] for name in names_of_up}
    given = {name: options[name] for name in settings_of(DeploymentSpec) if name in options}
    request = deploy_request(
        options["model"], given, name=options["name"], replace=options["replace"]
    )
    directory = state_directory(options["state"])
    task = _Deployed(directory, request, given["layout"], is_joining=bool(options["join"]))
    run_agent(**of_agent, no_http=False, task=task)


class _Deployed:
    """A model that is deployed for as long as the agent runs."""

    def __init__(
        self,
        directory: StateDirectory,
        request: Mapping[str, Any],
        layout: str | None,
        *,
        is_joining: bool,
    ) -> None:
        self._directory = directory
        self._request = request
        self._layout = layout
        self._is_joining = is_joining
        self._deployed: DeploymentId | None = None

    async def begin(self, agent: Agent) -> None:
        """Deploy it, through the agent's socket as every other command. See ``AgentTask``."""
        if self._is_joining:
            await _joined(agent)
        result = await asyncio.to_thread(deployed, self._directory, self._request, self._layout)
        self._deployed = DeploymentId(result["deployment"])
        note(f"{result['model_id']} is ready on {format_count(len(result['stages']), 'stage')}")
        names = await asyncio.to_thread(node_names, self._directory)
        for line in stage_lines(names.in_document(result)):
            note(line)

    async def end(self, agent: Agent) -> None:
        """Undeploy it, unless it was handed over to other nodes or is undeployed already: another
        deployment may have its name now. See ``AgentTask``.
        """
        if self._deployed is None or agent.coordination.is_draining:
            return
        record = agent.coordination.records.get(self._deployed)
        if record is None or record.is_removed:
            return
        try:
            async with asyncio.timeout(_UNDEPLOY_SECONDS):
                await agent.coordination.undeploy_record(record)
        except (PotluckError, TimeoutError) as error:
            reason = error or "no answer"
            note(f"{record.model_id} may still be deployed on other nodes: {reason}")


async def _joined(agent: Agent) -> None:
    """Wait until this node sees another one."""
    if not agent.membership.nodes() - {agent.node_id}:
        note("waiting for the cluster")
    while not agent.membership.nodes() - {agent.node_id}:
        await asyncio.sleep(_LOOK_SECONDS)


declare_parameters(
    serve,
    [
        parameter
        for name, parameter in {
            **inspect.signature(deploy).parameters,
            **inspect.signature(up).parameters,
        }.items()
        if name not in _NOT_OF_SERVE | _OF_BOTH
    ],
)
