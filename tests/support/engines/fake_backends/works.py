"""A backend with two variants that computes what it should."""

from __future__ import annotations

import time

from support.engines.fake_backends.behaviour import note_call, right_results, say

match note_call():
    case ["self-test", _, _]:
        say({"results": {"slow": right_results(), "fast": right_results()}})
    case ["measure", _, _, "fast", num_threads, max_weights_bytes]:
        say({"progress": 0.5})
        time.sleep(0.3)  # long enough for another process to wait for it
        source = f"{num_threads} threads, {max_weights_bytes} bytes"
        say(
            {
                "figures": {
                    "read_bytes_per_second": {"value": 5e9, "source": source},
                    "int8_operations_per_second": {"value": 10**12, "source": source},
                },
                "rates": {"decode_tokens_per_second": {"value": 12.5, "source": source}},
            }
        )
