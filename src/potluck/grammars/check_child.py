"""The child process that compiles grammars for ``GrammarChecker``.

It reads and writes one line of JSON per grammar. It exits when its input ends, or when it has been
idle for a while. A compilation that takes too much time, memory or stack ends it with a signal.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import select
import signal
import sys
from functools import lru_cache
from pathlib import Path

import llguidance

from potluck.grammars.build import CONTROL, END, LibraryTokens, control_token
from potluck.grammars.limits import (
    MAX_CHECK_SECONDS,
    MAX_COMPILE_BYTES,
    MAX_STACK_BYTES,
    parser_limits,
)
from potluck.grammars.problems import NO_TEXT, problem_of

_IDLE_SECONDS = 60.0

_NUM_WALKS = 3
_WALK_TOKENS = 24
_WALK_SEED = 17
"""Some grammars compile, but are too complex from their first tokens on; random texts show this."""


def main() -> None:
    """Answer requests until the input ends."""
    _bound_memory()
    limits = parser_limits()
    while (line := _next_line()) is not None:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, MAX_CHECK_SECONDS)
        vocabulary = _vocabulary(tuple(request["control_tokens"]))
        problem = _problem(vocabulary, request["grammar"], limits)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps({"problem": problem}) + "\n")
        sys.stdout.flush()


@lru_cache(maxsize=1)
def _vocabulary(control_tokens: tuple[str, ...]) -> llguidance.LLTokenizer:
    """Return a vocabulary of single bytes and these control tokens."""
    names = [CONTROL + control_token(text).encode() for text in control_tokens]
    tokens = [*(bytes([byte]) for byte in range(256)), *names, END]
    return llguidance.LLTokenizer(LibraryTokens(tokens))  # type: ignore[arg-type]


def _problem(
    vocabulary: llguidance.LLTokenizer, grammar: str, limits: llguidance.LLParserLimits
) -> str | None:
    matcher = llguidance.LLMatcher(vocabulary, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        return problem_of(matcher.get_error())
    walk = random.Random(_WALK_SEED)
    for _ in range(_NUM_WALKS):
        for number in range(_WALK_TOKENS):
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            if matcher.is_error():
                return problem_of(matcher.get_error())
            if number == 0 and matcher.is_stopped() and not matcher.is_accepting():
                return NO_TEXT
            allowed = [token for token in range(mask.bit_length()) if mask >> token & 1]
            if matcher.is_stopped() or not matcher.consume_token(walk.choice(allowed)):
                break
        if matcher.is_error():
            return problem_of(matcher.get_error())
        matcher.reset()
    return None


def _next_line() -> bytes | None:
    if not select.select([sys.stdin.buffer], [], [], _IDLE_SECONDS)[0]:
        return None
    return sys.stdin.buffer.readline() or None


def _bound_memory() -> None:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    match = re.search(r"^VmSize:\s+(\d+) kB", status, re.MULTILINE)
    in_use = int(match[1]) * 1024 if match else 0
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (1 if hard != 0 else 0, hard))
    if in_use:
        limit = in_use + MAX_COMPILE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft == resource.RLIM_INFINITY or soft > MAX_STACK_BYTES:
        resource.setrlimit(resource.RLIMIT_STACK, (MAX_STACK_BYTES, hard))
        os.execv(sys.executable, [sys.executable, "-m", "potluck.grammars.check_child"])
    main()
