"""A backend that never answers."""

from __future__ import annotations

import time

from support.engines.fake_backends.behaviour import note_call

note_call()
time.sleep(60)
