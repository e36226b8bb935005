"""A backend that dies through every interface but the one whose address is "good"."""

from __future__ import annotations

import os
import signal

from support.engines.fake_backends.behaviour import note_call, right_results, say

match note_call():
    case ["self-test", _, "fake=good"]:
        say({"results": {"only": right_results()}})
    case ["measure", _, "fake=good", *_]:
        say({"figures": {"read_bytes_per_second": {"value": 1, "source": "good"}}, "rates": {}})
    case ["variants", *_]:
        say({"variants": []})
    case _:
        os.kill(os.getpid(), signal.SIGSEGV)
