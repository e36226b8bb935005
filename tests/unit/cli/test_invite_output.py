"""What ``potluck invite`` and ``potluck nodes`` show, and their schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import msgspec
import pytest
from support.cluster.node_reports import node_report
from support.schemas import validate_document

from potluck.cli import invite as command
from potluck.cli.invite import invitation_lines, join_lines, line_headings
from potluck.cli.nodes import node_lines
from potluck.cluster.agent.inviting import Inviting, NewInvitation
from potluck.cluster.agent.nodes_view import (
    find_node,
    invitations_view,
    new_invitation_view,
    nodes_view,
)
from potluck.cluster.agent.removals import Removals
from potluck.cluster.agent.view import cluster_view
from potluck.cluster.invitations.invitation import parse_invitation
from potluck.cluster.invitations.ledger import Ledger
from potluck.cluster.network.trust.authority import derive_authority, issue_server_credentials
from potluck.cluster.network.trust.secret import generate_secret, parse_secret
from potluck.errors import UsageError, WheelFileError
from potluck.types.cluster import NodeId
from potluck.types.documents.nodes import NodesDocument
from potluck.types.node_names import names_of

NOW = 1_700_000_000.0
HERE, AWAY, REMOVED, SILENT = "a" * 16, "b" * 16, "c" * 16, "d" * 16
TEXT = f"10.0.0.7:7333/{'0123456789ABCDEFGHJKMNPQRSTVWXYZ'}/{'A' * 43}"


def ledger() -> Ledger:
    made, first, _ = Ledger().invite(NOW, num_uses=2, seconds=3600)
    made, _, _ = made.invite(NOW, num_uses=1, seconds=60)
    made, node = made.admit(first, b"k" * 32, NOW, name="board", host="10.0.0.9")
    members = tuple(msgspec.structs.replace(each, node_id=AWAY) for each in made.members)
    assert node == made.members[0].node_id
    return msgspec.structs.replace(made, members=members)


class PlayedRemovals:
    def times(self) -> dict[str, int]:
        return {REMOVED: int(NOW)}

    def holds_secret(self, node: str) -> bool | None:
        return {HERE: True, SILENT: None}[node]


class PlayedInviting:
    @property
    def ledger(self) -> Ledger:
        return ledger()


def view() -> NodesDocument:
    here = msgspec.structs.replace(node_report(NodeId(HERE), name="desk"), address="10.0.0.7:7333")
    cluster = cluster_view(NodeId(HERE), [here], [NodeId(SILENT)], {}, [])
    return nodes_view(
        cluster, cast("Removals", PlayedRemovals()), cast("Inviting", PlayedInviting())
    )


def test_a_new_invitation() -> None:
    authority = derive_authority(parse_secret(generate_secret()))
    certificate, _ = issue_server_credentials(authority, ["10.0.0.7"])
    view = new_invitation_view(
        NewInvitation(
            invitation_id="0" * 8,
            invitation=parse_invitation(TEXT),
            expires=NOW,
            num_uses=1,
            certificate_pem=certificate.decode(),
        )
    )
    made = msgspec.to_builtins(view)
    lines = join_lines(made, with_software=True)
    validate_document({**made, "lines": lines}, "invite")
    assert list(lines) == ["python", "shell", "potluck"]
    assert lines["potluck"] == f"potluck up --join {TEXT}"
    assert made["certificate_sha256"] in lines["python"]
    assert f"sha256//{made['key_sha256']};" in lines["shell"]
    alone = join_lines(made, with_software=False)
    validate_document({**made, "lines": alone}, "invite")
    assert list(alone) == ["potluck"]


def test_every_command_says_where_to_run_it() -> None:
    assert list(line_headings(["python", "shell", "potluck"])) == [
        "on a machine with Python 3.11 or newer, run:",
        "or, on a machine with a shell and curl or GNU wget, run:",
        "or, on a machine with this version of Potluck, run:",
    ]
    assert list(line_headings(["potluck"])) == ["on a machine with this version of Potluck, run:"]


def test_why_this_node_cannot_set_up_other_machines_is_said_without_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = {
        "invitation_id": "0" * 8,
        "invitation": TEXT,
        "addresses": ["10.0.0.7:7333"],
    }
    problem = WheelFileError("potluck", "there is no wheel of this node", hint="build one")
    monkeypatch.setattr(command, "result_of", lambda *_: made)
    monkeypatch.setattr(command, "_software_problem", lambda _: problem)
    command.invite(state=tmp_path)
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "a machine without Potluck cannot be set up from here: there is no wheel of this node",
        "hint: build one",
    ]


def test_invitations_are_listed() -> None:
    shown = validate_document(invitations_view(ledger(), NOW + 120), "invitations")
    first, second, third = invitation_lines(shown, NOW + 120)
    assert first.split() == ["INVITATION", "USED", "STATE", "NODES"]
    assert second.endswith(f"1 of 2  valid for 58 min  {AWAY}")
    assert third.endswith("0 of 1  it has expired    -")
    named = names_of(msgspec.to_builtins(view().nodes)).in_document(shown)
    assert list(invitation_lines(named, NOW + 120))[1].endswith("58 min  board")
    assert "no invitations" in next(invitation_lines({"invitations": []}, NOW))


def test_the_list_calls_nodes_by_their_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Also those that have left."""
    results = msgspec.to_builtins({"invitations": invitations_view(ledger(), NOW), "nodes": view()})
    monkeypatch.setattr(command, "result_of", lambda _, method, __: results[method])
    command.invite(list_all=True, state=tmp_path)
    _, first, _ = capsys.readouterr().out.splitlines()
    assert first.endswith("  board")
    command.invite(list_all=True, json=True, state=tmp_path)
    assert json.loads(capsys.readouterr().out)["invitations"][0]["nodes"] == [AWAY]


def test_nodes_that_are_there_away_and_removed() -> None:
    shown = validate_document(view(), "nodes")
    lines = list(node_lines(shown))
    assert lines[1].split() == [HERE, "desk", "ready", "secret", "10.0.0.7:7333"]
    assert lines[2].split() == [SILENT, "-", "silent", "-", "-"]
    assert lines[3].split() == [AWAY, "board", "away", "invitation", "-"]
    assert lines[4].split()[:3] == [REMOVED, "-", "removed"]


def test_a_node_is_found_by_its_id_its_beginning_or_its_name() -> None:
    assert find_node(view(), HERE).node_id == HERE
    assert find_node(view(), "aaaa").node_id == HERE
    assert find_node(view(), "board").node_id == AWAY
    assert find_node(view(), "e" * 16).node_id == "e" * 16  # never seen here
    for unknown in ("aaa", "nobody", "E" * 16, REMOVED):
        with pytest.raises(UsageError):
            find_node(view(), unknown)
    nodes = view().nodes
    twin = msgspec.structs.replace(nodes[0], node_id=NodeId("f" * 16))
    several = NodesDocument(nodes=(*nodes, twin))
    with pytest.raises(UsageError, match="several"):
        find_node(several, "desk")
