"""A backend that dies whatever it is asked."""

from __future__ import annotations

import os
import signal

from support.engines.fake_backends.behaviour import note_call

note_call()
os.kill(os.getpid(), signal.SIGSEGV)
