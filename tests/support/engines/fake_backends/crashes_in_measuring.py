"""A backend that passes, and then crashes under load."""

from __future__ import annotations

import os
import signal

from support.engines.fake_backends.behaviour import note_call, right_results, say

match note_call():
    case ["self-test", _, _]:
        say({"results": {"only": right_results()}})
    case ["measure", *_]:
        os.kill(os.getpid(), signal.SIGBUS)
