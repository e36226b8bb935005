"""What a grammar may take."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import llguidance

MAX_GRAMMAR_BYTES = 256 * 1024
"""Of a grammar's text. Schemas of real APIs have up to some tens of kilobytes."""

MAX_CHECK_SECONDS = 3
"""For one compilation. The largest schemas of real APIs take some tenths of a second."""

MAX_COMPILE_BYTES = 96 * 2**20
"""What a compilation may take of memory, beyond what the process had before."""

MAX_STACK_BYTES = 8 * 2**20
"""Of the thread that compiles where a grammar is checked; wherever else it is compiled, the stack
is larger (``STAGE_STACK_BYTES``)."""

STAGE_STACK_BYTES = 16 * 2**20
"""Of a thread that compiles what was checked and follows it. Only what is used takes memory."""

MAX_IDLE_MATCHERS = 16
"""Those of sequences that have ended, kept for others. One takes some tens of kilobytes, and at
most what ``parser_limits`` allow, some tens of megabytes."""

FREE_SECONDS = 0.5
FREE_SECONDS_PER_TOKEN = 0.002
"""What following a sequence may take of the stage's time, which all of its sequences share. Masks
take 5 to 50 microseconds; those of grammars that are ambiguous without end take seconds."""


_LIBRARY_BYTES = 2 * 2**20
_TOKEN_BYTES = 700
"""Measured with vocabularies of 49,152 and 131,072 tokens: 350 to 430 bytes for each stay, and 640
are held while the vocabulary is prepared."""


def grammar_bytes(vocab_size: int) -> int:
    """Return what a process takes that follows grammars, once it follows the first."""
    return _LIBRARY_BYTES + _TOKEN_BYTES * vocab_size


def parser_limits() -> llguidance.LLParserLimits:
    """Return the library's limits: a grammar that exceeds one is refused, or ends its text."""
    import llguidance

    return llguidance.LLParserLimits(
        max_lexer_states=20_000, max_grammar_size=100_000, verbose_errors=False
    )
