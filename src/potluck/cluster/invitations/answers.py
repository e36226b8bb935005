"""Requests and answers of the invitation server: the interface for everything served through it.

The responder is asked about the path after ``/join/TOKEN/``, once the token was found to belong to
an open invitation. It runs in the server's process, in a thread of its own for each request, and
may take its time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class NewcomerRequest:
    """A request with a valid token.

    ``invitation_id`` names the invitation without revealing the token; ``host`` and ``port`` are
    where the newcomer reached this node, and ``newcomer`` its IP address as seen from here.
    ``name`` is the path after the token, without a leading slash: only letters, digits and
    ``._+!/-``, and no part of it is empty or begins with a dot. ``body`` is empty for GET.
    """

    invitation_id: str
    token: str = field(repr=False)
    host: str
    port: int
    newcomer: str
    method: str
    name: str
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a newcomer.

    ``length`` is None if it is unknown before the last chunk; the connection then ends with it. An
    exception while ``chunks`` runs aborts the connection, so that a newcomer never mistakes a part
    for the whole. ``chunks`` is closed if it has a ``close``.
    """

    status: int
    content_type: str
    length: int | None
    chunks: Iterator[bytes]


Responder = Callable[[NewcomerRequest], Answer | None]
"""Returns None if there is nothing of that name (404)."""


def answer_of(status: int, content_type: str, body: bytes) -> Answer:
    """Return an answer with a complete body."""
    return Answer(status=status, content_type=content_type, length=len(body), chunks=iter((body,)))


def json_answer(document: object, status: int = 200) -> Answer:
    """Return a JSON document as an answer."""
    return answer_of(status, "application/json", json.dumps(document).encode("utf-8") + b"\n")


def error_answer(status: int, message: str, hint: str = "") -> Answer:
    """Return an error as an answer: ``{"error": {"message": …, "hint": …}}``."""
    return json_answer({"error": {"message": message, "hint": hint}}, status)
