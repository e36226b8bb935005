"""A backend that works while FAKE_BACKEND_MOOD is not bad, and else refuses."""

from __future__ import annotations

import os

from support.engines.fake_backends.behaviour import note_call, right_results, say

note_call()
if os.environ.get("FAKE_BACKEND_MOOD") == "bad":
    say({"refused": "the driver is being updated"})
else:
    say({"results": {"only": right_results()}})
