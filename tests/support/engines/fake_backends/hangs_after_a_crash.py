"""A backend that crashes, and whose variants hang one by one."""

from __future__ import annotations

import os
import signal
import time

from support.engines.fake_backends.behaviour import note_call, say

match note_call():
    case ["variants", _, _]:
        say({"variants": ["a", "b", "c"]})
    case ["self-test", _, _]:
        os.kill(os.getpid(), signal.SIGILL)
    case _:
        time.sleep(60)
