"""llama.cpp through the package ``xllamacpp`` in a process of its own: one setting, or its build.

    python benchmarks/xllamacpp_child.py [CASE]

CASE is JSON as ``llamacpp.Xllamacpp`` writes it. Prints one JSON object: samples of tokens per
second of all sequences together, or, without a case, what the package says of itself.
"""

from __future__ import annotations

import json
import random
import sys
from functools import partial
from importlib.metadata import version
from typing import Any

import xllamacpp
from token_stream import together

SAMPLED = {"temperature": 0.8, "top_p": 0.95, "top_k": 0, "min_p": 0.0, "seed": 0}
"""As ``potluck.local.measuring.SAMPLED``: llama.cpp would add a top-k and a min-p."""

_FIRST_TOKEN = 100
_NUM_TOKENS = 1000
"""Tokens that prompts are drawn from: demo's have these, and none of them is special."""


def build() -> dict[str, str]:
    """Return the version, commit, compiler and features."""
    info = xllamacpp.BUILD_INFO
    return {
        "version": version("xllamacpp"),
        "commit": info["commit"],
        "compiler": info["compiler"],
        "system_info": xllamacpp.get_system_info(),
    }


def cpu_params(model: str, *, num_threads: int, num_slots: int, slot_tokens: int) -> Any:
    """Return the parameters of a server on CPUs, with ``slot_tokens`` of context in each slot."""
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_parallel = num_slots
    params.n_ctx = num_slots * slot_tokens
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = num_threads
    params.cpuparams_batch.n_threads = num_threads
    return params


def open_server(case: dict[str, Any]) -> Any:
    """Open a server with the model loaded and a slot for each sequence."""
    params = cpu_params(
        case["model"],
        num_threads=case["num_threads"],
        num_slots=case["num_sequences"],
        slot_tokens=case["num_prompt_tokens"] + case["num_decode_tokens"] + 16,
    )
    kinds = xllamacpp.llama_flash_attn_type
    params.flash_attn_type = (
        kinds.LLAMA_FLASH_ATTN_TYPE_ENABLED
        if case["flash_attention"]
        else kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED
    )
    return xllamacpp.Server(params)


def measure(case: dict[str, Any]) -> dict[str, list[float]]:
    """Run a warm-up round, then the counted rounds."""
    server = open_server(case)
    rounds = [_round(server, case) for _ in range(case["num_repeats"] + 1)][1:]
    return {
        "prefill": [prefill for prefill, _ in rounds],
        "decode": [decode for _, decode in rounds],
    }


def _round(server: Any, case: dict[str, Any]) -> tuple[float, float]:
    """Return the prompt and decode rates of sequences that start together."""
    draw = random.Random(0)
    timings: list[dict[str, float]] = []

    def ask(prompt: list[int]) -> None:
        answer = server.handle_completions(
            {
                "prompt": prompt,
                "n_predict": case["num_decode_tokens"],
                "cache_prompt": False,
                "ignore_eos": True,
                **(SAMPLED if case["is_sampled"] else {"temperature": 0.0}),
            }
        )
        timings.append(answer["timings"])

    def tokens() -> list[int]:
        drawn = (draw.randrange(_NUM_TOKENS) for _ in range(case["num_prompt_tokens"]))
        return [_FIRST_TOKEN + each for each in drawn]

    together([partial(ask, tokens()) for _ in range(case["num_sequences"])])
    if len(timings) < case["num_sequences"]:
        raise SystemExit("a completion failed")
    prompt_seconds = max(each["prompt_ms"] for each in timings) / 1000
    # The first token comes with the prompt.
    decode_rate = sum((each["predicted_n"] - 1) / each["predicted_ms"] for each in timings) * 1000
    return sum(each["prompt_n"] for each in timings) / prompt_seconds, decode_rate


def main() -> None:
    """Measure the case that was given, or describe the build."""
    document = measure(json.loads(sys.argv[1])) if len(sys.argv) > 1 else build()
    print(json.dumps(document))


if __name__ == "__main__":
    main()
