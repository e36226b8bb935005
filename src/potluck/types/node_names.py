"""What nodes are called where people read: by the names of their hosts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

_NODE_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])")


class NodeNames:
    """The names of nodes by id.

    A node whose name is unknown or empty, or that of another node too, is called by its id.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        counts = Counter(names.values())
        self._names = {
            node_id: name for node_id, name in names.items() if name and counts[name] == 1
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


def names_of(nodes: Iterable[Mapping[str, Any]]) -> NodeNames:
    """Return the names in the list ``nodes`` of a document on a cluster or a plan."""
    return NodeNames({node["node_id"]: node.get("name") or "" for node in nodes})
