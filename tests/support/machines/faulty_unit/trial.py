"""The trial of the played GPU: faster than any CPU, and right unless something is wrong with it."""

from __future__ import annotations

import sys

from support.engines.fake_backends.behaviour import right_results, say
from support.machines.faulty_unit import Misbehaviour, misbehaviour

_RATE = {"value": 1e6, "source": "a test"}

match sys.argv[1], misbehaviour():
    case "self-test", Misbehaviour.LIE:
        results = right_results()
        results["q8_0"][0][0] += 1
        say({"results": {"opencl": results}})
    case "self-test", None | Misbehaviour.NAN:
        say({"results": {"opencl": right_results()}})
    case "self-test", _:
        say({"refused": "something is wrong with the unit"})
    case "measure", _:
        rates = {"decode_tokens_per_second": _RATE, "prefill_tokens_per_second": _RATE}
        say({"figures": {"read_bytes_per_second": _RATE}, "rates": rates})
