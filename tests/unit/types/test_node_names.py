"""Names of hosts in place of ids of nodes, in what people read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from potluck.types.node_names import NodeNames, names_of

KITCHEN, ATTIC, TWIN, SILENT = ("1" * 16, "2" * 16, "3" * 16, "f" * 16)
NAMES = names_of(
    [
        {"node_id": KITCHEN, "name": "pi5-kitchen"},
        {"node_id": ATTIC, "name": "box"},
        {"node_id": TWIN, "name": "box"},
        {"node_id": SILENT},
    ]
)


def test_nodes_are_called_by_their_names_unless_two_have_one() -> None:
    assert NAMES.of(KITCHEN) == "pi5-kitchen"
    assert (NAMES.of(ATTIC), NAMES.of(TWIN)) == ("box-2222", "box-3333")
    for node in (SILENT, "4" * 16):
        assert NAMES.of(node) == node
    assert NAMES.unit({"node_id": KITCHEN, "unit_id": "cpu/native"}) == "pi5-kitchen cpu/native"


@pytest.mark.parametrize(
    ("others", "called"),
    [
        (("3f9c" + "1" * 12,), "board-3f9c2222"),
        (("3f9c2222" + "1" * 8,), "3f9c" + "2" * 12),
        (("4" * 16, "3f9c" + "1" * 12), "board-3f9c2222"),
    ],
)
def test_as_many_digits_follow_as_tell_nodes_apart(others: Sequence[str], called: str) -> None:
    node = "3f9c" + "2" * 12
    assert NodeNames(dict.fromkeys((node, *others), "board")).of(node) == called


def test_ids_in_a_text_are_replaced_and_longer_numbers_are_not() -> None:
    text = f"stage 1 on node {KITCHEN}: lost; {ATTIC}; sha256 {KITCHEN * 4}"
    shown = f"stage 1 on node pi5-kitchen: lost; box-2222; sha256 {KITCHEN * 4}"
    assert NAMES.in_text(text) == shown


def test_a_document_has_names_in_texts_and_keys() -> None:
    document = {
        "node_id": KITCHEN,
        "by_source": {KITCHEN: 7, "disk": 2},
        "stages": [{"reason": f"lost {KITCHEN}", "num": 3, "none": None}],
    }
    assert NAMES.in_document(document) == {
        "node_id": "pi5-kitchen",
        "by_source": {"pi5-kitchen": 7, "disk": 2},
        "stages": [{"reason": "lost pi5-kitchen", "num": 3, "none": None}],
    }
