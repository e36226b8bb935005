"""Check whether a grammar can be used, before a request proceeds.

Grammars come from clients, and a malicious one can crash the process that compiles it: chains of
thousands of references overflow the stack, and counts of billions exhaust the memory. So it is
first compiled in a child process with limits (``check_child``). If that succeeds, the last stage
compiles it again, with higher limits.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Sequence

from potluck.errors import ParameterError
from potluck.grammars.build import require_own_form
from potluck.grammars.limits import MAX_CHECK_SECONDS, MAX_GRAMMAR_BYTES
from potluck.host.child_environment import child_environment
from potluck.types.quantities import format_bytes
from potluck.types.text import Tokenizer

_log = logging.getLogger(__name__)

_MAX_REMEMBERED = 1024
_START_SECONDS = 20.0
"""Time for a child to start on a slow and busy machine, in addition to the time for a grammar."""

_TOO_COMPLEX = "the grammar is too large or too complex to compile"


class GrammarChecker:
    """Checks grammars in a child process, which is started when it is needed.

    Thread-safe; one grammar is checked at a time. A check blocks for milliseconds, and at most for
    a few seconds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._remembered: OrderedDict[bytes, str | None] = OrderedDict()

    def check(
        self, grammar: str, *, control_tokens: Sequence[str] = (), parameter: str = "grammar"
    ) -> None:
        """Raise ``ParameterError`` for ``parameter`` if ``grammar`` cannot be used.

        The grammar is in the form that ``build`` returns. ``control_tokens`` are the texts of the
        control tokens that it may refer to, ``Tokenizer.special_tokens``.
        """
        data = grammar.encode("utf-8", "surrogatepass")
        if len(data) > MAX_GRAMMAR_BYTES:
            raise ParameterError(
                parameter,
                f"the grammar has {format_bytes(len(data))}",
                hint=f"the limit is {format_bytes(MAX_GRAMMAR_BYTES)}",
            )
        require_own_form(grammar, parameter)
        request = json.dumps({"grammar": grammar, "control_tokens": list(control_tokens)}).encode()
        key = hashlib.sha256(request).digest()
        with self._lock:
            if key not in self._remembered:
                self._remembered[key] = self._ask(request)
                if len(self._remembered) > _MAX_REMEMBERED:
                    self._remembered.popitem(last=False)
            self._remembered.move_to_end(key)
            problem = self._remembered[key]
        if problem is not None:
            raise ParameterError(parameter, problem, hint="see docs/guides/structured-output.md")

    def check_for(self, tokenizer: Tokenizer, grammar: str, *, parameter: str = "grammar") -> None:
        """Check a grammar for a model with ``tokenizer``; see ``check``."""
        if not tokenizer.eos_token_ids:
            raise ParameterError(
                parameter,
                "the model's tokenizer has no end-of-text token, which grammars require",
            )
        self.check(grammar, control_tokens=tokenizer.special_tokens, parameter=parameter)

    def close(self) -> None:
        """End the child. Idempotent."""
        with self._lock:
            self._end_child()

    def _ask(self, request: bytes) -> str | None:
        for _ in range(2):
            if self._child is None:
                self._child = _Child()
            answer = self._child.ask(request)
            if answer is not None:
                problem = json.loads(answer)["problem"]
                return problem if problem is None else str(problem)
            child, was_idle = self._child, self._child.ended_idle()
            self._end_child()
            if not was_idle:
                _log.warning("a grammar crashed the process that checks it (%s)", child.exit_reason)
                return _TOO_COMPLEX
        return _TOO_COMPLEX

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()


class _Child:
    """The child process, which ends when it is closed or no longer used."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "potluck.grammars.check_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
        )
        self._end = weakref.finalize(self, _end, self._process)

    @property
    def exit_reason(self) -> str:
        code = self._process.poll()
        if code is None:
            return "it took too long"
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def ask(self, request: bytes) -> bytes | None:
        """Return the line of the answer; None if there is none."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + _START_SECONDS + MAX_CHECK_SECONDS
        try:
            self._process.stdin.write(request + b"\n")
            self._process.stdin.flush()
        except OSError:
            return None
        answer = b""
        descriptor = self._process.stdout.fileno()
        while not answer.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                return None
            piece = os.read(descriptor, 65536)
            if not piece:
                return None
            answer += piece
        return answer

    def ended_idle(self) -> bool:
        """Return whether it exited because it was idle."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(0.5) == 0
        return False

    def close(self) -> None:
        self._end()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
