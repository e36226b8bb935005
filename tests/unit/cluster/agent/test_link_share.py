"""When transfers leave most of the link to what the node serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from support.cluster.calls import A, B, a_record
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.agent.link_share import serves, share_links
from potluck.cluster.transfer.supervisor import TransferProcess
from potluck.types.cluster import DeploymentId
from potluck.types.deployment import DeploymentRecord, DeploymentState
from potluck.types.speed import LinkSpeed

READY = a_record(coordinator=A)


def test_a_coordinator_serves() -> None:
    assert serves(A, [READY], ())
    assert not serves(B, [READY], ())
    assert not serves(A, [], ())


def test_a_gateway_serves_while_it_has_sequences() -> None:
    assert serves(B, [READY], {READY.deployment})
    assert not serves(B, [READY], {DeploymentId("another")})


@pytest.mark.parametrize(
    "state", [each for each in DeploymentState if each is not DeploymentState.READY]
)
def test_files_of_a_deployment_that_does_not_answer_yet_are_not_slowed_down(
    state: DeploymentState,
) -> None:
    record = a_record(coordinator=A, state=state)
    assert not serves(A, [record], {record.deployment})
    assert serves(A, [record, READY], {record.deployment})


class Files:
    """A transfer process that remembers what it was told."""

    def __init__(self) -> None:
        self.updates: list[tuple[bool, float]] = []

    def set_serving(self, is_serving: bool, *, link_bytes_per_second: float) -> None:
        self.updates.append((is_serving, link_bytes_per_second))


def updates_of(
    is_serving: Callable[[], bool], speeds: list[LinkSpeed], *changes: Callable[[], None]
) -> list[tuple[bool, float]]:
    """What the transfer process is told before the first of the changes, and after each."""
    files = Files()

    async def scenario() -> None:
        sharing = asyncio.ensure_future(
            share_links(cast(TransferProcess, files), is_serving, lambda: speeds)
        )
        await asyncio.sleep(1)
        for change in changes:
            change()
            await asyncio.sleep(1)
        sharing.cancel()
        await asyncio.gather(sharing, return_exceptions=True)

    run_in_virtual_time(scenario())
    return files.updates


def test_the_transfer_process_is_told_of_changes_only() -> None:
    records: list[DeploymentRecord] = []
    speeds: list[LinkSpeed] = []
    assert updates_of(
        lambda: serves(A, records, ()),
        speeds,
        lambda: records.append(READY),
        lambda: speeds.extend(speed(rate) for rate in (1e7, 1e8)),
        records.clear,
    ) == [(False, 0.0), (True, 0.0), (True, 1e8), (False, 1e8)]


def test_what_is_measured_beside_a_transfer_or_from_afar_changes_nothing() -> None:
    speeds = [speed(1e6), speed(5e6, latency_seconds=0.02)]

    def fill_the_link() -> None:
        speeds[:] = [speed(2e5)]

    assert updates_of(lambda: False, speeds, fill_the_link) == [(False, 1e6)]


def test_a_fast_link_counts_from_afar_too() -> None:
    assert updates_of(lambda: True, [speed(1e8, latency_seconds=0.02)]) == [(True, 1e8)]


def speed(bytes_per_second: float, *, latency_seconds: float = 1e-4) -> LinkSpeed:
    return LinkSpeed(
        node_id=B,
        latency_seconds=latency_seconds,
        bytes_per_second=bytes_per_second,
        num_samples=1,
        age_seconds=0.0,
    )
