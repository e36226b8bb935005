"""Measure what a prefix cache saves, and how a long prompt affects a concurrent stream.

    python benchmarks/shapes.py Llama-3.2-1B /tmp/1b.gguf --type Q4_0 --max-context 32768
    python benchmarks/prefix.py /tmp/1b.gguf --output results/prefix.json

``conversation``: the second turn of a conversation against its first. ``agents``: the calls of two
agents in turns, which share a long beginning and grow with every call, against the same calls
without the cache; of those only some are measured, and the others follow from their lengths.
``stream``: the times between a stream's tokens while a long prompt is read. llama.cpp's server
(``xllamacpp``) gets the first two as well, unless ``--alone``. Prompts are random tokens. See
METHODOLOGY.md.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from circumstances import circumstances
from command_line import documented_parser

Document = dict[str, Any]

_CHILD = Path(__file__).with_name("prefix_child.py")
_ANSWER_TOKENS = 32
_QUESTION_TOKENS = 48
"""The length of a user's next question: a few sentences."""
_MESSAGE_TOKENS = 96
"""The length of an agent's next message: the result of a tool."""


class Child:
    """A server in a process of its own."""

    def __init__(self, case: Document) -> None:
        self.name: str = case["server"]
        self._process = subprocess.Popen(
            [sys.executable, str(_CHILD), json.dumps(case)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if case["server"] == "xllamacpp" else None,
            text=True,
        )

    def __enter__(self) -> Self:
        self._read()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def ask(self, prompt: Sequence[int], max_tokens: int, **more: object) -> Document:
        """Answer one prompt."""
        assert self._process.stdin is not None
        request = {"prompt": list(prompt), "max_tokens": max_tokens, **more}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Document:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} has ended")
        document: Document = json.loads(line)
        return document


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Sizes of the scenarios."""

    model: str
    num_threads: int
    rounds: int
    conversation_tokens: int
    shared_tokens: int
    turns: int
    cold_turns: int

    def case(self, server: str, context_tokens: int, num_slots: int) -> Document:
        """Return the input of a child process."""
        return {
            "server": server,
            "model": self.model,
            "num_threads": self.num_threads,
            "context_tokens": context_tokens,
            "num_slots": num_slots,
            "cache_tokens": 2 * context_tokens,
        }


def main() -> None:
    """Measure, print and write a document."""
    parser = documented_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--conversation", type=int, default=4000, help="tokens of its first turn")
    parser.add_argument("--shared", type=int, default=8000, help="tokens that agents share")
    parser.add_argument("--turns", type=int, default=20, help="calls of each agent")
    parser.add_argument("--cold-turns", type=int, default=4, help="measured without the cache")
    parser.add_argument("--alone", action="store_true", help="without llama.cpp")
    parser.add_argument("--only", choices=["conversation", "agents", "stream"])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    options = Options(
        model=arguments.model,
        num_threads=arguments.threads,
        rounds=arguments.rounds,
        conversation_tokens=arguments.conversation,
        shared_tokens=arguments.shared,
        turns=arguments.turns,
        cold_turns=arguments.cold_turns,
    )
    peers = [] if arguments.alone else ["xllamacpp"]
    document: Document = {"circumstances": circumstances()}
    for name, measure in (("conversation", conversation), ("stream", stream), ("agents", agents)):
        if arguments.only in (None, name):
            document[name] = measure(options, peers)
            if arguments.output is not None:
                arguments.output.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def conversation(options: Options, peers: Sequence[str]) -> list[Document]:
    """Measure the first and the second turn of a new conversation in each round."""
    context = options.conversation_tokens + 512
    rows = []
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child(options.case(server, context, 1)))
            for server in ("potluck", *peers)
        ]
        for number in range(options.rounds):
            for child in children:
                draw = random.Random(f"{number} {child.name}")
                first = _tokens(draw, options.conversation_tokens)
                cold = child.ask(first, _ANSWER_TOKENS)
                second = [*first, *_answer(cold, draw), *_tokens(draw, _QUESTION_TOKENS)]
                warm = child.ask(second, _ANSWER_TOKENS)
                row = {
                    "server": child.name,
                    "first_seconds": cold["first_token_seconds"],
                    "second_seconds": warm["first_token_seconds"],
                    "ratio": warm["first_token_seconds"] / cold["first_token_seconds"],
                    "num_cached": warm["num_cached"],
                    "num_prompt": len(second),
                }
                rows.append(row)
                print(
                    f"conversation  {child.name:10} first {row['first_seconds']:7.2f} s"
                    f"  second {row['second_seconds']:6.3f} s  {100 * row['ratio']:5.2f} %",
                    flush=True,
                )
    return rows


def stream(options: Options, _: Sequence[str]) -> Document:
    """Measure the time between a stream's tokens, before and while a long prompt is processed."""
    context = options.conversation_tokens + 512
    rounds = []
    with Child(options.case("potluck", context, 1)) as child:
        child.ask(_tokens(random.Random("rate"), 1024), 4)  # so that its rate is known
        for number in range(options.rounds):
            prompt = _tokens(random.Random(f"stream {number}"), options.conversation_tokens)
            answer = child.ask(prompt, 1, stream=16)
            before, beside = answer["before"], answer["beside"]
            step = statistics.median(beside)
            row = {
                "decode_seconds": statistics.median(before),
                "chunk_step_seconds": step,
                "longest_seconds": max(beside),
                "ratio": max(beside) / step,
                "first_token_seconds": answer["first_token_seconds"],
                "between_tokens_seconds": beside,
            }
            rounds.append(row)
            print(
                f"stream  between tokens {1000 * row['decode_seconds']:5.0f} ms alone,"
                f" {1000 * step:5.0f} ms beside a prompt, at most"
                f" {1000 * row['longest_seconds']:5.0f} ms; the prompt took"
                f" {row['first_token_seconds']:.2f} s in {len(beside)} chunks",
                flush=True,
            )
        alone = child.ask(_tokens(random.Random("alone"), options.conversation_tokens), 1)
    return {"rounds": rounds, "alone_first_token_seconds": alone["first_token_seconds"]}


def agents(options: Options, peers: Sequence[str]) -> Document:
    """Measure all calls of two agents, alternating."""
    per_turn = _ANSWER_TOKENS + _MESSAGE_TOKENS
    context = options.shared_tokens + (options.turns + 2) * per_turn
    document: Document = {}
    every = max(1, (options.turns - 1) // max(1, options.cold_turns - 1))
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child(options.case(server, context, 2)))
            for server in ("potluck", *peers)
        ]
        cold = stack.enter_context(Child(options.case("uncached", context, 2)))
        draw = random.Random("agents")
        shared = _tokens(draw, options.shared_tokens)
        prompts = {
            (child.name, agent): [*shared, *_tokens(draw, _MESSAGE_TOKENS)]
            for agent in range(2)
            for child in children
        }
        turns: dict[str, list[Document]] = {child.name: [] for child in (*children, cold)}
        for turn in range(options.turns):
            for agent in range(2):
                for child in children:
                    prompt = prompts[child.name, agent]
                    answer = child.ask(prompt, _ANSWER_TOKENS)
                    turns[child.name].append(_turn(prompt, answer))
                    is_sampled = agent == 0 and turn % every == 0
                    if child.name == "potluck" and is_sampled:
                        turns[cold.name].append(_turn(prompt, cold.ask(prompt, _ANSWER_TOKENS)))
                    message = _tokens(draw, _MESSAGE_TOKENS)
                    prompts[child.name, agent] = [*prompt, *_answer(answer, draw), *message]
            print(f"agents  turn {turn + 1} of {options.turns}", flush=True)
    measured = turns.pop(cold.name)
    without = sum(_interpolated(measured, each["num_prompt"]) for each in turns["potluck"])
    document = {"turns": turns, "cold_turns": measured, "seconds_without": without}
    for name, each in turns.items():
        total = sum(turn["seconds"] for turn in each)
        document[name] = {"seconds": total, "ratio": total / without}
        print(
            f"agents  {name:10} {total:7.1f} s; without the cache Potluck takes {without:7.1f} s:"
            f"  {total / without:.3f}",
            flush=True,
        )
    return document


def _turn(prompt: Sequence[int], answer: Document) -> Document:
    kept = ("seconds", "first_token_seconds", "num_cached")
    return {"num_prompt": len(prompt), **{name: answer[name] for name in kept}}


def _interpolated(measured: Sequence[Document], num_prompt: int) -> float:
    """Estimate the seconds of a call with a prompt of this length by linear regression."""
    lengths = [each["num_prompt"] for each in measured]
    seconds = [each["seconds"] for each in measured]
    if len(set(lengths)) < 2:
        return float(statistics.mean(seconds) * num_prompt / statistics.mean(lengths))
    slope, intercept = statistics.linear_regression(lengths, seconds)
    return slope * num_prompt + intercept


def _tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(100, 1100) for _ in range(count)]


def _answer(answer: Document, draw: random.Random) -> list[int]:
    """Return the tokens of an answer; arbitrary ones for a server that does not report tokens."""
    return list(answer["tokens"]) or _tokens(draw, _ANSWER_TOKENS)


if __name__ == "__main__":
    main()
