"""Resource limits of grammars."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import llguidance

MAX_GRAMMAR_BYTES = 256 * 1024
"""The maximum size of a grammar's text. Schemas of real APIs have up to tens of kilobytes."""

MAX_CHECK_SECONDS = 3
"""The limit of the CPU time of a compilation. The largest schemas of real APIs take tenths of a
second."""

MAX_COMPILE_BYTES = 96 * 2**20
"""The memory limit of a compilation, in addition to the memory of the process before it."""

MAX_STACK_BYTES = 8 * 2**20
"""The stack size of the thread that checks grammars; other threads that compile grammars have a
larger stack (``STAGE_STACK_BYTES``)."""

STAGE_STACK_BYTES = 16 * 2**20
"""The stack size of a thread that compiles and follows checked grammars. Unused stack needs no
memory."""

MAX_IDLE_MATCHERS = 16
"""The maximum number of idle matchers, which are kept for other sequences. One takes tens of
kilobytes, and at most what ``parser_limits`` allow, tens of megabytes."""

FREE_SECONDS = 0.5
FREE_SECONDS_PER_TOKEN = 0.002
"""The limit of the CPU time for following a sequence, since all sequences share the stage's time.
Masks take 5 to 50 microseconds; masks of infinitely ambiguous grammars take seconds. Time in which
other processes use the CPU does not count, or texts would depend on how busy a machine is."""


_LIBRARY_BYTES = 2 * 2**20
_TOKEN_BYTES = 700
"""The memory per token, measured with vocabularies of 49,152 and 131,072 tokens: 350 to 430 bytes,
and 640 while the vocabulary is being prepared."""


def grammar_bytes(vocab_size: int) -> int:
    """Return the memory that following grammars takes in a process, from the first grammar on."""
    return _LIBRARY_BYTES + _TOKEN_BYTES * vocab_size


def parser_limits() -> llguidance.LLParserLimits:
    """Return the library's limits; a grammar that exceeds one is refused or its text cut off."""
    import llguidance

    return llguidance.LLParserLimits(
        max_lexer_states=20_000, max_grammar_size=100_000, verbose_errors=False
    )
