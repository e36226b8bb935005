"""Count the Python modules that a chat request and a token of an answer pass through.

    python benchmarks/walks.py MODEL OUT.json [--agents 1]

Agents with MODEL deployed count the calls of functions in each of their modules, and so do their
workers: during twenty chat requests with one token each, and during a hundred tokens in the middle
of a stream. Calls of the same time without a request are subtracted. A module is on the way if it
was called once for each request, or once for every second token. With two agents, the requests are
sent to the one that does not coordinate.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from circumstances import write_result
from live_cluster import LiveAgent, LiveCluster, wait_until
from token_stream import Ask, TokenStream, post_json

SCHEMA = "potluck.benchmark.walks/1"

NUM_REQUESTS = 20
NUM_TOKENS = 100
MAX_TOKENS = 400

_PROFILER = """
import collections, json, os, pathlib, signal, sys, threading

counts = collections.Counter()
folder = pathlib.Path(os.environ["WALKS_FOLDER"])

def note(frame, event, argument):
    if event == "call":
        counts[frame.f_code.co_filename] += 1

def dump(number, frame):
    draft = folder / f"{os.getpid()}.draft"
    draft.write_text(json.dumps({"command": sys.orig_argv, "counts": dict(counts)}))
    counts.clear()
    draft.rename(draft.with_suffix(".json"))

if "potluck" in sys.orig_argv or "potluck.cluster.worker" in sys.orig_argv:
    signal.signal(signal.SIGUSR1, dump)
    threading.setprofile(note)
    sys.setprofile(note)
"""
"""A ``sitecustomize``: what it defines is there before the first module of Potluck."""


class Recording:
    """What agents and their workers call, since the last ``take``."""

    def __init__(self, folder: Path, agents: list[LiveAgent]) -> None:
        self._folder = folder
        self._processes = {f"agent {agent.number}": agent.pid for agent in agents} | {
            f"worker of agent {agent.number}": pid for agent in agents for pid in agent.workers()
        }

    def take(self) -> dict[str, Counter[str]]:
        """Return the number of calls by process and module, and start again."""
        found = {}
        for name, pid in self._processes.items():
            file = self._folder / f"{pid}.json"
            file.unlink(missing_ok=True)
            os.kill(pid, signal.SIGUSR1)
            wait_until(file.exists, within=30, what=f"{name} has written its calls")
            calls: Counter[str] = Counter()
            for path, count in json.loads(file.read_text("utf-8"))["counts"].items():
                _, is_own, module = path.rpartition("/src/potluck/")
                if is_own:
                    calls[module] += count
            found[name] = calls
        return found


def on_the_way(
    during: dict[str, Counter[str]], idle: dict[str, Counter[str]], least: int
) -> dict[str, list[str]]:
    """Return the modules of each process with ``least`` more calls than when it was idle."""
    return {
        name: sorted(module for module, n in calls.items() if n - idle[name][module] >= least)
        for name, calls in during.items()
    }


def _chat(port: int, seed: int) -> None:
    """Ask for one token of a sampled answer to a chat."""
    messages = [{"role": "user", "content": "Who are you?"}]
    body = {"model": "walked", "messages": messages, "max_tokens": 1, "seed": seed}
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    post_json(connection, "/v1/chat/completions", body)


def measure(model: str, num_agents: int, work: Path) -> dict[str, dict[str, list[str]]]:
    """Return the modules on the way of a request and of a token."""
    (work / "sitecustomize.py").write_text(_PROFILER)
    os.environ["WALKS_FOLDER"] = str(work)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(work), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    with LiveCluster(work / "cluster") as cluster:
        agents = [cluster.start(number) for number in range(num_agents)]
        cluster.await_members()
        cluster.deploy(agents[0], model, "walked")
        port = agents[-1].port
        _chat(port, seed=NUM_REQUESTS)
        recording = Recording(work, agents)
        recording.take()
        started = time.monotonic()
        for seed in range(NUM_REQUESTS):
            _chat(port, seed)
        took = time.monotonic() - started
        request = recording.take()
        time.sleep(took)
        request_ways = on_the_way(request, recording.take(), NUM_REQUESTS)

        stream = TokenStream()
        ask = Ask(prompt="a fox", max_tokens=MAX_TOKENS, seed=1)
        reader = threading.Thread(target=stream.read, args=(port, "walked", ask))
        reader.start()
        wait_until(lambda: len(stream.times) > 10, within=60, what="the stream has begun")
        recording.take()
        started = time.monotonic()
        first = len(stream.times)
        wait_until(lambda: len(stream.times) > first + NUM_TOKENS, within=60, what="tokens")
        tokens = recording.take()
        took = time.monotonic() - started
        if not reader.is_alive():
            raise RuntimeError("the stream ended while it was measured")
        reader.join()
        recording.take()
        time.sleep(took)
        token_ways = on_the_way(tokens, recording.take(), NUM_TOKENS // 2)
    return {"request": request_ways, "token": token_ways}


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--agents", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        ways = measure(arguments.model, arguments.agents, Path(work))
    write_result(arguments.out, SCHEMA, {"agents": arguments.agents, **ways}, indent=1)
    for kind, by_process in ways.items():
        for process, modules in by_process.items():
            print(f"{kind}, {process}: {len(modules)} modules")


if __name__ == "__main__":
    main()
