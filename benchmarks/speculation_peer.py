"""llama.cpp's server with its n-gram drafts, from ``xllamacpp``: a child of ``speculation.py``.

    python benchmarks/speculation_peer.py CASE

Prints a list of JSON objects: for each way of drafting, kind of text and sampling, how many times
as fast it is as without drafts, which takes turns with it; null where no answer is long enough.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import xllamacpp
from xllamacpp_child import cpu_params

_TYPES = xllamacpp.common_speculative_type
_DRAFTS = {
    "ngram-simple": _TYPES.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE,
    "ngram-map-k": _TYPES.COMMON_SPECULATIVE_TYPE_NGRAM_MAP_K,
    "ngram-mod": _TYPES.COMMON_SPECULATIVE_TYPE_NGRAM_MOD,
    "ngram-cache": _TYPES.COMMON_SPECULATIVE_TYPE_NGRAM_CACHE,
}
"""With llama.cpp's own defaults."""


def _server(case: dict[str, Any], drafts: Any = None) -> Any:
    params = cpu_params(
        case["model"],
        num_threads=case["num_threads"],
        num_slots=1,
        slot_tokens=case["context_tokens"],
    )
    if drafts is not None:
        params.speculative.types = [drafts]
    return xllamacpp.Server(params)


def _rate(server: Any, case: dict[str, Any], text: str, sampling: dict[str, float]) -> float | None:
    answer = server.handle_chat_completions(
        {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": case["num_tokens"],
            "seed": 0,
            "top_k": 0,
            "min_p": 0.0,
            "repeat_penalty": 1.0,
            **sampling,
        }
    )
    timings = answer["timings"]
    if timings["predicted_n"] < case["least_tokens"]:
        return None
    return float((timings["predicted_n"] - 1) / timings["predicted_ms"] * 1000)


def measure(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Measure every way of drafting, each alternating with none."""
    rows = []
    off = _server(case)
    for name, drafts in _DRAFTS.items():
        server = _server(case, drafts)
        for kind, texts in case["texts"].items():
            for sampling, parameters in case["samplings"].items():
                rates: list[tuple[float, float]] = []
                for _ in range(case["num_rounds"]):
                    for text in texts:
                        plain = _rate(off, case, text, parameters)
                        drafted = _rate(server, case, text, parameters)
                        if plain and drafted:
                            rates.append((plain, drafted))
                named = {"drafts": name, "kind": kind, "sampling": sampling}
                rows.append(named | _summary(rates))
        del server
    return rows


def _summary(rates: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return the median rates with and without drafts, and the median of their ratio."""
    if not rates:
        return dict.fromkeys(("gain", "least", "most", "off", "drafted")) | {"pairs": []}
    gains = [drafted / plain for plain, drafted in rates]
    return {
        "gain": statistics.median(gains),
        "least": min(gains),
        "most": max(gains),
        "off": statistics.median(plain for plain, _ in rates),
        "drafted": statistics.median(drafted for _, drafted in rates),
        "pairs": rates,
    }


if __name__ == "__main__":
    json.dump(measure(json.loads(sys.argv[1])), sys.stdout)
