"""A backend with a defect."""

from __future__ import annotations

from support.engines.fake_backends.behaviour import note_call

note_call()
raise KeyError("device")
