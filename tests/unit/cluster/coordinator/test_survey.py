"""What a coordinator makes of nodes that say what cannot be true of themselves."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import msgspec
import pytest
from support.cluster.calls import PlayedMembership
from support.cluster.node_reports import node_report
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.coordinator.survey import _ask_all, _ask_survey, gather_reports
from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.calls import NodeSurvey, SurveyNode, encode
from potluck.types.cluster import NodeId
from potluck.types.node import CPU_UNIT, NodeReport, UnitReport
from potluck.types.speed import NodeSpeeds

OWN, OTHER = NodeId("a" * 16), NodeId("b" * 16)
UNIT = UnitReport(
    unit_id=CPU_UNIT,
    backend="native",
    description="",
    usable_bytes=2**30,
    is_shared=True,
    num_threads=2,
    max_threads=2,
)


def report_of(node: NodeId, **changes: Any) -> NodeReport:
    return node_report(node, **{"units": (UNIT,), "usable_bytes": 2**30, **changes})


def nodes_of(reports: dict[NodeId, NodeReport]) -> Membership:
    """Return a membership whose nodes answer with ``reports``."""

    def survey(node: NodeId, _: bytes) -> bytes:
        speeds = NodeSpeeds(node_id=node)
        return encode(NodeSurvey(report=reports[node], check=None, speeds=speeds))

    answers = {"node.report": lambda node, _: encode(reports[node]), "node.survey": survey}
    others = set(reports) - {OWN}
    return cast(Membership, PlayedMembership(node_id=OWN, others=others, answers=answers))


def reasons_against(report: NodeReport) -> list[str]:
    """Return why the report of the node ``OTHER`` is not used; the own one is in any case."""
    nodes = nodes_of({OWN: report_of(OWN), OTHER: report})
    reports, silent = run_in_virtual_time(gather_reports(nodes))
    assert OWN in [each.node_id for each in reports]
    assert len(reports) + len(silent) == 2
    ask = partial(_ask_survey, nodes, SurveyNode(model="m", model_shapes=()))
    surveys, unsurveyed = run_in_virtual_time(_ask_all(nodes, ask))
    assert [each.report for each in surveys.values()] == reports
    assert [each.node_id for each in unsurveyed] == [each.node_id for each in silent]
    return [each.reason for each in silent if each.node_id == OTHER]


def test_ordinary_reports_are_used() -> None:
    assert reasons_against(report_of(OTHER)) == []
    assert reasons_against(report_of(OTHER, usable_bytes=-(2**30))) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"usable_bytes": 2**64 - 1},
        {"untaken_bytes": 2**63},
        {"units": (msgspec.structs.replace(UNIT, usable_bytes=2**63),)},
        {"units": (msgspec.structs.replace(UNIT, num_threads=0),)},
        {"units": (msgspec.structs.replace(UNIT, num_threads=2**62),)},
        {"units": (UNIT, UNIT)},
        {"units": tuple(msgspec.structs.replace(UNIT, unit_id=str(i)) for i in range(2000))},
    ],
)
def test_a_node_whose_figures_cannot_be_true_is_left_out(changes: dict[str, Any]) -> None:
    (reason,) = reasons_against(report_of(OTHER, **changes))
    assert reason.startswith("it does not answer")


def test_the_name_of_a_node_has_nothing_that_a_terminal_obeys() -> None:
    nodes = nodes_of({OWN: report_of(OWN), OTHER: report_of(OTHER, name="pi5\x1b]0;\n\x9b2Jé")})
    reports, _ = run_in_virtual_time(gather_reports(nodes))
    assert [each.name for each in reports] == ["", "pi5]0;2Jé"]
    ask = partial(_ask_survey, nodes, SurveyNode(model="m", model_shapes=()))
    surveys, _ = run_in_virtual_time(_ask_all(nodes, ask))
    assert surveys[OTHER].report.name == "pi5]0;2Jé"


def test_a_node_reports_for_itself_only() -> None:
    (reason,) = reasons_against(report_of(OWN))
    assert f"it reports a wrong node id: {OWN}" in reason
