"""A backend that passes, and then claims to be infinitely fast."""

from __future__ import annotations

from support.engines.fake_backends.behaviour import note_call, right_results, say

match note_call():
    case ["self-test", _, _]:
        say({"results": {"only": right_results()}})
    case ["measure", *_]:
        figure = {"value": 0, "source": "nothing"}
        say({"figures": {"read_bytes_per_second": figure}, "rates": {}})
