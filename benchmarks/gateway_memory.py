"""Measure an agent's memory under large request bodies, and their cost for another client.

    python benchmarks/gateway_memory.py MODEL OUT.json [--clients 64] [--bytes 4194304] [--rounds 2]

An agent is started and MODEL deployed on it. One client streams completions throughout. First it is
alone; then CLIENTS others post a body of BYTES each, all at once, ROUNDS times for each kind of
body; then it is alone again for a minute. The agent's resident memory is sampled every 50 ms.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from circumstances import circumstances
from command_line import documented_parser
from token_stream import together

SCHEMA = "potluck.benchmark.gateway_memory/1"
SAMPLE_SECONDS = 0.05
REST_SECONDS = 60.0
POTLUCK = (sys.executable, "-m", "potluck")


def bodies(model: str, size: int) -> dict[str, tuple[str, bytes]]:
    """Return a path and a body of about ``size`` bytes for each kind of request."""

    def completion(prompt: str) -> tuple[str, bytes]:
        return "/v1/completions", f'{{"model":"{model}","prompt":{prompt}}}'.encode()

    def chat(messages: str) -> tuple[str, bytes]:
        return "/v1/chat/completions", f'{{"model":"{model}","messages":[{messages}]}}'.encode()

    message = '{"role":"user","content":"hello there"}'
    return {
        "prose": completion('"' + "the quick brown fox, " * (size // 21) + '"'),
        "word": completion('"' + "a" * size + '"'),
        "emoji": completion('"' + "a" * (size - 4) + "😀" + '"'),
        "escapes": completion('"' + "\\u4e00" * (size // 6) + '"'),
        "tokens": completion("[" + ",".join(["1234"] * (size // 5)) + "]"),
        "brackets": completion("[" + ",".join(["[]"] * (size // 3)) + "]"),
        "chat": chat('{"role":"user","content":"' + "go on and on, " * (size // 14) + '"}'),
        "messages": chat(",".join([message] * (size // (len(message) + 1)))),
    }


@dataclass(slots=True)
class Watch:
    """Samples the memory of a process on a thread."""

    pid: int
    samples: list[tuple[float, float]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def mebibytes(self) -> float:
        """Return the current resident size in MiB."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def run(self) -> None:
        """Sample until ``ended`` is set."""
        while not self.ended.wait(SAMPLE_SECONDS):
            self.samples.append((time.monotonic(), self.mebibytes()))

    def most_between(self, start: float, end: float) -> float:
        """Return the highest sample between two times, in MiB."""
        return max((value for at, value in self.samples if start <= at <= end), default=0.0)


@dataclass(slots=True)
class Stream:
    """A client that streams one completion after another and records the times of events."""

    address: tuple[str, int]
    model: str
    gaps: list[tuple[float, float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Stream until ``ended`` is set. The time to a stream's first event is not a gap."""
        while not self.ended.is_set():
            try:
                self._stream()
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))

    def _stream(self) -> None:
        body = {"model": self.model, "prompt": "Once", "max_tokens": 200, "stream": True, "seed": 1}
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps(body))
        response = connection.getresponse()
        if response.status != 200:
            self.failures.append(f"{response.status} {response.read(200)!r}")
            time.sleep(0.1)
        last: float | None = None
        for line in response:
            if self.ended.is_set():
                break
            if line.startswith(b"data: {"):
                now = time.monotonic()
                if last is not None:
                    self.gaps.append((now, now - last))
                last = now
        connection.close()

    def between(self, start: float, end: float) -> dict[str, float]:
        """Summarize the gaps between two times, in milliseconds."""
        gaps = sorted(gap * 1e3 for at, gap in self.gaps if start <= at <= end)
        if not gaps:
            return {"count": 0}
        return {
            "count": len(gaps),
            "median_ms": statistics.median(gaps),
            "p99_ms": gaps[int(len(gaps) * 0.99)],
            "longest_ms": gaps[-1],
        }


def post_all(address: tuple[str, int], path: str, body: bytes, count: int) -> Counter[str]:
    """Send ``count`` requests at once, and count the statuses of the answers."""
    statuses: Counter[str] = Counter()

    def post() -> None:
        connection = http.client.HTTPConnection(*address, timeout=120)
        try:
            connection.request("POST", path, body)
            status = str(connection.getresponse().status)
        except (OSError, http.client.HTTPException) as error:
            status = type(error).__name__
        finally:
            connection.close()
        statuses[status] += 1

    together([post] * count)
    return statuses


@contextmanager
def agent(model: str, context: int) -> Iterator[tuple[int, tuple[str, int], str]]:
    """Run a new agent with ``model`` deployed; yield its process id, address and model id."""
    with tempfile.TemporaryDirectory() as directory:
        state = ["--state", directory]
        command = [*POTLUCK, "up", "--http", "127.0.0.1:0", *state]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                url = process.stdout.readline().strip().removeprefix("http://")
                host, _, port = url.rpartition(":")
                deploy = [*POTLUCK, "deploy", model, "--context", str(context), *state]
                subprocess.run(deploy, check=True, stdout=subprocess.DEVNULL)
                connection = http.client.HTTPConnection(host, int(port))
                connection.request("GET", "/v1/models")
                model_id = json.load(connection.getresponse())["data"][0]["id"]
                connection.close()
                yield process.pid, (host, int(port)), model_id
            finally:
                process.terminate()


def main() -> None:
    """Measure, print, write the file."""
    parser = documented_parser(__doc__)
    parser.add_argument("model", help="a directory, a .gguf file, or demo")
    parser.add_argument("out", type=Path, help="where the JSON goes")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--bytes", type=int, default=4 * 2**20 - 1024)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--rest", type=float, default=REST_SECONDS, help="seconds")
    arguments = parser.parse_args()
    document: dict[str, object] = {"schema": SCHEMA, **circumstances()}
    with agent(arguments.model, arguments.context) as (pid, address, model_id):
        watch, stream = Watch(pid), Stream(address, model_id)
        threads = [threading.Thread(target=each.run) for each in (watch, stream)]
        for thread in threads:
            thread.start()
        started = time.monotonic()
        time.sleep(8)
        alone = time.monotonic()
        idle = statistics.median(value for at, value in watch.samples if at > alone - 2)
        quiet = stream.between(started, alone)
        print(f"idle {idle:.0f} MiB; alone {quiet}")
        kinds = {}
        for kind, (path, body) in bodies(model_id, arguments.bytes).items():
            begun = time.monotonic()
            statuses: Counter[str] = Counter()
            for _ in range(arguments.rounds):
                statuses += post_all(address, path, body, arguments.clients)
            ended = time.monotonic()
            kinds[kind] = {
                "seconds": ended - begun,
                "statuses": dict(statuses),
                "most_above_idle_mib": watch.most_between(begun, ended) - idle,
                "between_tokens": stream.between(begun, ended),
            }
            print(kind, kinds[kind])
        time.sleep(arguments.rest)
        after = statistics.median(value for _, value in watch.samples[-20:])
        for each in (watch, stream):
            each.ended.set()
        for thread in threads:
            thread.join()
    print(f"{after - idle:.0f} MiB above idle after {arguments.rest:g} s")
    document |= {
        "model": Path(arguments.model).name,
        "clients": arguments.clients,
        "body_bytes": arguments.bytes,
        "idle_mib": idle,
        "alone": quiet,
        "kinds": kinds,
        "rest_seconds": arguments.rest,
        "after_rest_above_idle_mib": after - idle,
        "stream_failures": stream.failures,
        "memory_samples_mib": [[round(at - started, 2), round(m, 1)] for at, m in watch.samples],
    }
    arguments.out.write_text(json.dumps(document) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
