"""Who takes over what, over links that are cut and healed."""

from __future__ import annotations

import asyncio

import pytest
from support.cluster.calls import A, a_record
from support.cluster.played_cluster import MINORITY_SECONDS, PlayedCluster, run_played
from support.virtual_time.run import reach

from potluck.types.cluster import Epoch


def test_the_first_of_those_that_are_left_takes_over_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("a", a_record())
        await cluster.kill("a")
        await cluster.settle("b")
        assert cluster["b"].record().epoch.number == 2
        assert cluster.coordinators() == ["b"]
        assert f"took over demo from node {A}, at epoch 2" in caplog.text
        assert cluster["c"].deployment() is None, "it had its turn later"

    run_played("abc", body)


def test_one_that_cannot_read_the_model_holds_nobody_up() -> None:
    async def body(cluster: PlayedCluster) -> None:
        cluster["b"].is_readable = False
        await cluster.deploy("a", a_record())
        await cluster.kill("a")
        await cluster.settle("c")
        assert cluster["b"].deployment() is None

    run_played("abcd", body)


def test_a_successor_that_dies_is_followed_by_the_next() -> None:
    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("a", a_record())
        for killed, following in (("a", "b"), ("b", "c")):
            await cluster.kill(killed)
            await cluster.settle(following)
        assert cluster["c"].record().epoch.number == 3

    run_played("abcd", body)


def test_of_two_nodes_the_one_that_is_left_takes_over_at_once() -> None:
    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("b", a_record())
        await cluster.kill("b")
        await cluster.settle("a", within=MINORITY_SECONDS / 2)
        assert cluster["a"].record().has_quorum

    run_played("ab", body)


def test_a_node_that_was_cut_off_and_is_back_in_time_disturbs_nothing() -> None:
    """It takes over nothing while most of the others are on the other side."""

    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("b", a_record())
        before = cluster["b"].record().epoch
        cluster.cut("ab", "ac", "ad")
        await asyncio.sleep(MINORITY_SECONDS / 2)
        candidate = cluster["a"].deployment()
        assert candidate is not None
        assert candidate.record.epoch == before, "it has taken no epoch"
        cluster.heal()
        await asyncio.sleep(0.1)
        assert cluster["a"].deployment() is None
        assert [node.record().epoch for node in cluster.nodes.values()] == [before] * 4
        assert cluster.coordinators() == ["b"]

    run_played("abcd", body)


def test_a_minority_that_has_gone_on_alone_yields_to_the_others_whatever_its_epoch() -> None:
    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("b", a_record())
        cluster.cut("ab", "ac", "ad")
        await reach(
            lambda: cluster["a"].record().epoch.coordinator == A, what="node a goes on alone"
        )
        alone = cluster["a"].record()
        assert not alone.has_quorum
        assert alone.epoch > cluster["b"].record().epoch
        cluster.heal()
        await cluster.settle("b")
        assert cluster.coordinators() == ["b"]
        # What follows is above both, so that workers of either side obey it.
        await cluster.kill("b")
        await cluster.settle("a")
        assert cluster["c"].record().epoch > alone.epoch

    run_played("abcd", body)


def test_with_one_link_cut_nobody_takes_over_what_a_third_node_still_sees() -> None:
    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("a", a_record())
        before = cluster["a"].record().epoch
        cluster.cut("ab")
        await asyncio.sleep(5 * 0.1 + 0.2)
        assert cluster["b"].deployment() is None
        assert {node.record().epoch for node in cluster.nodes.values()} == {before}
        cluster.heal()
        await asyncio.sleep(0.1)
        assert {node.record().epoch for node in cluster.nodes.values()} == {before}

    run_played("abc", body)


def test_candidates_that_do_not_see_each_other_end_with_one() -> None:
    """Both see the third node, which tells the one that lost."""

    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("d", a_record())
        cluster.cut("bd", "ab")
        await asyncio.sleep(0.05)
        await cluster.kill("d")
        await reach(
            lambda: len(cluster.coordinators()) == len(_epochs(cluster, "abc")) == 1,
            within=3,
            what="all have the epoch of one coordinator",
        )
        await asyncio.sleep(0.3)
        assert len(cluster.coordinators()) == 1
        (epoch,) = _epochs(cluster, "abc")
        assert epoch.coordinator[0] == cluster.coordinators()[0]
        assert epoch.number <= 4

    run_played("abcd", body)


def test_later_records_are_learned_from_those_who_are_asked() -> None:
    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("d", a_record())
        cluster.cut("ab", "bd")
        cluster["b"].is_readable = False  # so it asks, and takes nothing over
        await cluster.kill("d")
        await reach(
            lambda: cluster["b"].record().epoch.coordinator == A, within=3, what="node a took over"
        )
        assert cluster.coordinators() == ["a"]

    run_played("abcd", body)


def _epochs(cluster: PlayedCluster, names: str) -> set[Epoch]:
    return {cluster[name].record().epoch for name in names}


def test_both_halves_go_on_and_the_higher_epoch_wins_after_healing() -> None:
    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("a", a_record())
        cluster.cut("ac", "ad", "bc", "bd")
        await reach(
            lambda: cluster.coordinators() == ["a", "c"], within=3, what="each half has one"
        )
        assert cluster["c"].record().has_quorum
        cluster.heal()
        await cluster.settle("c")
        assert cluster.coordinators() == ["c"]
        assert cluster["a"].deployment() is None

    run_played("abcd", body)


def test_two_who_try_at_once_end_with_one() -> None:
    async def body(cluster: PlayedCluster) -> None:
        cluster.monkeypatch.setattr("potluck.cluster.agent.takeover.TURN_SECONDS", 0.0)
        await cluster.deploy("e", a_record())
        await cluster.kill("e")
        await asyncio.sleep(0.5)
        assert len(cluster.coordinators()) == 1
        (coordinator,) = cluster.coordinators()
        await cluster.settle(coordinator)

    run_played("abcde", body)
