"""``potluck.cli.serve`` has the options of both commands."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from potluck.cli import serve as module
from potluck.cli.cluster import deploy
from potluck.cli.serve import serve
from potluck.cli.up import up, up_line
from potluck.cluster.agent.state import StateDirectory
from potluck.cluster.network.membership import Address
from potluck.types.cluster import NodeId


def test_serve_has_the_options_of_up_and_of_deploy() -> None:
    of_both = {**inspect.signature(deploy).parameters, **inspect.signature(up).parameters}
    # The option --no-store of both is the parameter keep_weights of deploy.
    without = {"json", "no_http", "no_store"}
    assert set(inspect.signature(serve).parameters) == set(of_both) - without
    for name, parameter in inspect.signature(serve).parameters.items():
        assert parameter.default == of_both[name].default


def test_an_address_on_loopback_is_for_this_machine_only() -> None:
    node, port = NodeId("a" * 16), 7333
    reached = f"node {node} is up; other nodes reach it at "
    for host, only in (
        ("10.0.0.7", "10.0.0.7:7333"),
        ("127.0.0.1", "127.0.0.1:7333 (on this machine only)"),
        ("::1", "[::1]:7333 (on this machine only)"),
    ):
        assert up_line(node, Address(host=host, port=port)) == reached + only


@pytest.mark.parametrize("is_removed", [False, True])
def test_only_the_own_deployment_is_undeployed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    own = SimpleNamespace(model_id="demo", is_removed=is_removed)
    records = {"own": own, "other": SimpleNamespace(model_id="demo", is_removed=False)}
    undeployed = []

    async def undeploy_record(record: object) -> None:
        undeployed.append(record)

    coordination = SimpleNamespace(
        is_draining=False, records=records, undeploy_record=undeploy_record
    )
    agent = cast(Any, SimpleNamespace(coordination=coordination))
    result = {"deployment": "own", "model_id": "demo", "stages": [], "remarks": []}
    monkeypatch.setattr(module, "deployed", lambda *_: result)
    monkeypatch.setattr(module, "node_names", lambda _: SimpleNamespace(in_document=dict))
    monkeypatch.setattr(module, "stage_lines", lambda _: ())

    async def serving() -> None:
        task = module._Deployed(StateDirectory(tmp_path), {}, None, is_joining=False)
        await task.begin(agent)
        await task.end(agent)

    asyncio.run(serving())
    assert undeployed == ([] if is_removed else [own])
