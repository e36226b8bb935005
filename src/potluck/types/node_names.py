"""Names of nodes in text output: the names of their hosts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_NODE_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])")


_NUM_DIGITS = (4, 8)
"""The number of digits of an id that follow a name shared by several nodes. If these do not differ,
the whole id follows.
"""


class NodeNames:
    """The names of nodes by id.

    A node whose name is unknown or empty is called by its id. If several have one name, the first
    digits of the id follow: ``board-3f9c``.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        by_name: dict[str, list[str]] = defaultdict(list)
        for node_id, name in names.items():
            if name:
                by_name[name].append(node_id)
        self._names = {
            node_id: text
            for name, node_ids in by_name.items()
            for node_id, text in _told_apart(name, node_ids)
        }

    def of(self, node_id: str) -> str:
        """Return what a node is called."""
        return self._names.get(node_id, node_id)

    def unit(self, each: Mapping[str, Any]) -> str:
        """Return what a unit is called: the name of its node, and its own id."""
        return f"{self.of(each['node_id'])} {each['unit_id']}"

    def in_text(self, text: str) -> str:
        """Return ``text`` with names in place of ids."""
        return _NODE_ID.sub(lambda found: self.of(found[0]), text)

    def in_document(self, document: Any) -> Any:
        """Return a JSON document with names in place of ids in all texts and keys, for display."""
        if isinstance(document, str):
            return self.in_text(document)
        if isinstance(document, Mapping):
            return {self.in_text(key): self.in_document(each) for key, each in document.items()}
        if isinstance(document, list | tuple):
            return [self.in_document(each) for each in document]
        return document


def _told_apart(name: str, node_ids: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Return what each of the nodes of one name is called."""
    if len(node_ids) == 1:
        return [(node_ids[0], name)]
    for num_digits in _NUM_DIGITS:
        if len({node_id[:num_digits] for node_id in node_ids}) == len(node_ids):
            return [(node_id, f"{name}-{node_id[:num_digits]}") for node_id in node_ids]
    return []


def names_of(nodes: Iterable[Mapping[str, Any]]) -> NodeNames:
    """Return the names in the list ``nodes`` of a document on a cluster or a plan."""
    return NodeNames({node["node_id"]: node.get("name") or "" for node in nodes})
