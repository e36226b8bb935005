"""A backend of which one variant has instructions that the CPU does not know."""

from __future__ import annotations

import os
import signal

from support.engines.fake_backends.behaviour import note_call, right_results, say

match note_call():
    case ["variants", _, _]:
        say({"variants": ["plain", "bad", "good"]})
    case ["self-test", _, _, ("plain" | "good") as variant]:
        say({"results": {variant: right_results()}})
    case ["self-test", *_]:
        os.kill(os.getpid(), signal.SIGILL)
