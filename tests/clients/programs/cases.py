"""What every client is asked (``cases.json``), and how its program reports what it got.

A program runs in ``build/clients``. Its arguments are the address of an agent and the path of
``cases.json``. It prints a JSON object: each case's name with its ``value``, or with the ``error``
that it ended with.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_SHARED = json.loads(Path(sys.argv[2]).read_text("utf-8"))

MODEL: str = _SHARED["model"]
PROMPT: str = _SHARED["prompt"]
TEXT: str = _SHARED["text"]
"""A prompt that is no message."""

MAX_TOKENS: int = _SHARED["max_tokens"]
"""Of free texts."""

QUESTION: str = _SHARED["question"]
TOOL: str = _SHARED["tool"]
DESCRIPTION: str = _SHARED["description"]
RESULT: str = _SHARED["result"]
SCHEMA: dict[str, Any] = _SHARED["schema"]
"""Of tools' arguments and of answers."""

FUNCTION: dict[str, Any] = {
    "type": "function",
    "function": {"name": TOOL, "description": DESCRIPTION, "parameters": SCHEMA},
}

MAX_SEED = 40
"""Where a client can't require a call, the model is asked with one seed after another until it
makes one."""


def report(cases: Mapping[str, Callable[[str], object]]) -> None:
    """Run the cases and print what came of them."""
    found: dict[str, object] = {}
    for name, case in cases.items():
        try:
            found[name] = {"value": case(sys.argv[1])}
        except Exception:  # noqa: BLE001 - told by the test
            found[name] = {"error": traceback.format_exc()}
    print(json.dumps(found))
