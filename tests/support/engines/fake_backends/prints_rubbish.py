"""A library that prints what is no document."""

from __future__ import annotations

from support.engines.fake_backends.behaviour import note_call

note_call()
print("Welcome to libvendor!")
