"""Clients that read a stream while something happens to the cluster.

Those on other hosts are processes there, since a socket belongs to its namespace.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from support.cluster.agents import AgentProcess, no_end
from support.network.netns import Host
from support.processes.waiting import eventually
from token_stream import Ask, TokenStream

PROMPT = "The harbour at night was quiet"

_STREAM = """
import json, sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode())
request.add_header("Content-Type", "application/json")
with urllib.request.urlopen(request, timeout=60) as answer:
    for line in answer:
        text = line.decode().strip()
        if text.startswith("data: {"):
            document = json.loads(text[6:])
            if "error" in document:
                print("error", json.dumps(document["error"]), flush=True)
            else:
                print("text", json.dumps(document["choices"][0]["text"]), flush=True)
        elif text == "data: [DONE]":
            print("done", flush=True)
"""


class Stream:
    """A client on a gateway's host that reads a completion of ``demo`` as it comes.

    ``sampling`` are fields of the request; without any it is greedy.
    """

    def __init__(self, host: Host, agent: AgentProcess, max_tokens: int, **sampling: float) -> None:
        body = {
            "model": "demo",
            "prompt": PROMPT,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "logit_bias": no_end(),
            **sampling,
        }
        url = f"{agent.url}/v1/completions"
        self.process = subprocess.Popen(
            host.command(sys.executable, "-c", _STREAM, url, json.dumps(body)),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.arrivals: list[float] = []
        self.text = ""
        self.errors: list[str] = []
        self.is_done = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):
                break  # it was killed while it wrote
            kind, _, rest = line.strip().partition(" ")
            if kind == "text":
                self.text += json.loads(rest)
                self.arrivals.append(time.monotonic())
            elif kind == "error":
                self.errors.append(rest)
            elif kind == "done":
                self.is_done = True

    def slowest(self, since: float, until: float) -> float:
        """The longest time without a token between two moments, or until it was complete."""
        times = [since, *(each for each in self.arrivals if since < each < until)]
        times += [] if self.is_done else [until]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def complete(self, *, within: float) -> str:
        """The whole text, once it is there."""
        self._reader.join(within)
        assert self.is_done, f"no end within {within} s, after {len(self.arrivals)} parts"
        assert self.errors == []
        return self.text

    def close(self) -> None:
        self.process.kill()
        self._reader.join()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


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
