"""What the address adds to the time of an answer."""

from __future__ import annotations

import http.client
import time

from support.http.api_server import running_api

DELAYED_ACKNOWLEDGEMENT_SECONDS = 0.04
"""For so long Linux leaves data unacknowledged, and a sender with Nagle's algorithm waits."""


def test_no_part_of_an_answer_waits_for_the_client_to_acknowledge_another() -> None:
    with running_api() as api:
        connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)
        seconds = []
        for _ in range(20):
            started = time.monotonic()
            connection.request("GET", "/health")
            connection.getresponse().read()
            seconds.append(time.monotonic() - started)
        connection.close()
    # The first answers come sooner in any case: a new connection is acknowledged at once.
    assert min(seconds[10:]) < DELAYED_ACKNOWLEDGEMENT_SECONDS / 2, seconds
