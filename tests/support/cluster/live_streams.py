"""Streams of the demo model that are read while something happens to the cluster."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from support.cluster.agents import AgentProcess
from support.processes.waiting import eventually
from token_stream import Ask, TokenStream

_MODEL = "demo"
_NUM_BEGUN = 20
"""Tokens of a stream that has begun; far from the last."""


@dataclass(slots=True)
class Live:
    """A stream on a thread of its own."""

    stream: TokenStream
    thread: threading.Thread

    def end(self, *, within: float = 90) -> TokenStream:
        """The stream once it has ended by itself."""
        self.thread.join(within)
        assert not self.thread.is_alive(), f"the stream goes on after {within} s"
        return self.stream


def begin(agent: AgentProcess, ask: Ask, *, num_tokens: int = _NUM_BEGUN) -> Live:
    """A stream with so many tokens at the client."""
    stream = TokenStream()
    port = int(agent.url.rpartition(":")[2])
    thread = threading.Thread(target=stream.read, args=(port, _MODEL, ask))
    thread.start()
    live = Live(stream=stream, thread=thread)
    eventually(
        lambda: len(stream.times) >= num_tokens or stream.ended_at is not None,
        within=30,
        what="the stream has begun",
    )
    assert not stream.error, stream.error
    return live


def check_same(stream: TokenStream, expected: TokenStream) -> None:
    """Not a token was lost, repeated or changed."""
    assert not stream.error, f"{stream.error}, after {len(stream.times)} tokens"
    assert stream.is_whole
    assert stream.num_tokens == expected.num_tokens
    assert stream.text == expected.text
    assert stream.logprobs == expected.logprobs
