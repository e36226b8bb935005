"""The start of a program with a thread in Zenoh that asks for the interpreter's lock at its end."""

from __future__ import annotations

BUSY_IN_ZENOH = """
import sys, threading, time, zenoh

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.5)  # several times as long as that thread is in Zenoh at once

sys.slow = Slow()
config = zenoh.Config.from_json5(
    '{mode: "peer", listen: {endpoints: []}, scouting: {multicast: {enabled: false}}}'
)
session = zenoh.open(config)
subscriber = session.declare_subscriber("nothing")
threading.Thread(target=subscriber.recv, daemon=True).start()
"""
"""To be run by ``python -c``. It stands for a session that takes long to close: what is left of it
returns from Zenoh while the interpreter is finalized, which takes half a second here.
"""
