"""One server with one model in a process of its own, for ``prefix.py``.

    python benchmarks/prefix_child.py CASE

CASE is JSON: ``server`` (potluck, uncached or xllamacpp), ``model``, ``num_threads``,
``context_tokens``, ``num_slots`` and ``cache_tokens``. Each line of standard input is a request:
``prompt`` (token ids) and ``max_tokens``. The answer is a line of JSON: ``seconds``,
``first_token_seconds``, ``tokens`` and ``num_cached``. A request with ``stream`` decodes that many
tokens first, then asks the prompt beside it, and also tells the times between the stream's tokens.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from typing import Any, Protocol

Document = dict[str, Any]

_STREAM_PROMPT = list(range(100, 164))


class Server(Protocol):
    """Answers one prompt after another."""

    def ask(self, prompt: list[int], max_tokens: int) -> Document:
        """Return what ``first_token_seconds``, ``tokens`` and ``num_cached`` are."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Potluck:
    """``potluck.Model``: the scheduler and the stages of a deployment, without HTTP."""

    def __init__(self, case: Document) -> None:
        import potluck

        self.model = potluck.Model.open(
            case["model"],
            context_tokens=case["context_tokens"],
            cache_tokens=case["cache_tokens"],
            num_threads=case["num_threads"],
            prefix_cache=case["server"] == "potluck",
        )

    def ask(self, prompt: list[int], max_tokens: int) -> Document:
        """See ``Server``."""
        generation = self.model.generate(
            prompt, max_tokens=max_tokens, ignore_eos=True, temperature=0.0
        )
        result = generation.result()
        return {
            "first_token_seconds": result.pieces[0].seconds,
            "tokens": [piece.token for piece in result.pieces],
            "num_cached": result.timings.num_cached_tokens,
        }

    def close(self) -> None:
        """See ``Server``."""
        self.model.close()

    def ask_beside_stream(self, prompt: list[int], max_tokens: int, num_before: int) -> Document:
        """Ask while a stream decodes; also return the times of its tokens, and when it was asked.

        ``between`` are the seconds between the stream's tokens, of which the first ``num_before``
        came before the prompt.
        """
        stream = self.model.generate(_STREAM_PROMPT, ignore_eos=True, temperature=0.0)
        times: list[float] = []
        is_over = threading.Event()
        has_begun = threading.Event()

        def read() -> None:
            for _ in stream:
                times.append(time.perf_counter())
                if len(times) == num_before:
                    has_begun.set()
                if is_over.is_set():
                    return

        reader = threading.Thread(target=read)
        reader.start()
        has_begun.wait()
        requested_at = time.perf_counter()
        document = self.ask(prompt, max_tokens)
        ended_at = requested_at + document["first_token_seconds"]
        is_over.set()
        reader.join()
        gaps = [(end, end - start) for start, end in itertools.pairwise(times)]
        return document | {
            "before": [gap for end, gap in gaps if end < requested_at],
            "beside": [gap for end, gap in gaps if requested_at <= end <= ended_at],
        }


class Xllamacpp:
    """The server of llama.cpp in the package ``xllamacpp``."""

    def __init__(self, case: Document) -> None:
        import xllamacpp
        from xllamacpp_child import cpu_params

        params = cpu_params(
            case["model"],
            num_threads=case["num_threads"],
            num_slots=case["num_slots"],
            slot_tokens=case["context_tokens"],
        )
        self.server = xllamacpp.Server(params)

    def ask(self, prompt: list[int], max_tokens: int) -> Document:
        """See ``Server``. The first token comes with the prompt."""
        answer = self.server.handle_completions(
            {
                "prompt": prompt,
                "n_predict": max_tokens,
                "cache_prompt": True,
                "return_tokens": True,
                "ignore_eos": True,
                "temperature": 0.0,
            }
        )
        timings = answer["timings"]
        return {
            "first_token_seconds": timings["prompt_ms"] / 1000,
            "tokens": answer.get("tokens") or [],
            "num_cached": timings.get("cache_n", len(prompt) - timings["prompt_n"]),
        }

    def close(self) -> None:
        """See ``Server``: it ends with the process."""


def main() -> None:
    """Answer the requests of standard input."""
    case = json.loads(sys.argv[1])
    server: Any = Xllamacpp(case) if case["server"] == "xllamacpp" else Potluck(case)
    server.ask(list(range(100, 200)), 4)  # warms up
    print(json.dumps({"is_ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        started = time.perf_counter()
        if "stream" in request:
            answer = server.ask_beside_stream(
                request["prompt"], request["max_tokens"], request["stream"]
            )
        else:
            answer = server.ask(request["prompt"], request["max_tokens"])
        answer["seconds"] = time.perf_counter() - started
        print(json.dumps(answer), flush=True)
    server.close()


if __name__ == "__main__":
    main()
