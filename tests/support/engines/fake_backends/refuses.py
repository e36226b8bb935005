"""A backend whose library is not installed."""

from __future__ import annotations

from support.engines.fake_backends.behaviour import note_call, say

note_call()
say({"refused": "libvendor.so.1 is not installed"})
