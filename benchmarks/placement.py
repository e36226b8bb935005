"""Compare predicted with measured speed, and the chosen plan with others: METHODOLOGY, "Placement".

    python benchmarks/placement.py [--fleet NAME]… [--output benchmarks/results/placement.json]

Each fleet is of real agents on this machine whose cores are throttled by control groups and whose
links are delayed by a relay. Its model is deployed as Potluck chooses and in several other ways,
which are measured through HTTP in turn; then the same is predicted again, with what was measured.
With ``--output`` fleets that are in the file already are kept, unless they are measured again.

Needs root, version 1 of the kernel's CPU controller, iproute2 and util-linux. Models are made in
``build/placement``.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(_ROOT / "tests"))

from circumstances import circumstances  # noqa: E402
from command_line import documented_parser  # noqa: E402
from placement_fleets import FLEETS, FleetCase  # noqa: E402
from placement_layouts import Layout, alternatives, layout_of  # noqa: E402
from shapes import model_of  # noqa: E402
from support.cluster.throttled_fleet import Machine, ThrottledFleet, throttled_fleet  # noqa: E402
from token_stream import Ask, TokenStream, joint_rate, random_prompt  # noqa: E402

from potluck.errors import PotluckError  # noqa: E402

CONTEXT_TOKENS = 64
PROMPT_TOKENS = 16
NUM_TOKENS = 16
SLOW_NUM_TOKENS = 8
"""The number of tokens for a plan that is far slower than the chosen one."""

SLOW_SECONDS = 0.25
"""The time per token from which a plan counts as slow."""

NUM_ROUNDS = 2
NUM_REQUESTS = 2
NUM_OTHERS = 2
"""The number of plans that are measured in addition to the chosen one."""

LEAST_SPEED = 0.4
"""The predicted speed, relative to the chosen plan's, from which a plan is worth measuring."""

BESIDE_MODEL = "100M-BF16"
BESIDE_ROUNDS = 7

_MODELS = _ROOT / "build" / "placement"
Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Tokens per second of one plan, in one round."""

    layout: Layout
    samples: tuple[float, ...]


def main() -> None:
    """Measure fleets, print what was found, write the document."""
    parser = documented_parser(__doc__)
    names = [each.name for each in FLEETS]
    parser.add_argument("--fleet", action="append", choices=names, help="all by default")
    parser.add_argument("--beside", action="store_true", help="only a slow agent beside a fast one")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # such that agents are ended
    document: Document = {"schema": "potluck.benchmark.placement/1", "fleets": []}
    if arguments.output and arguments.output.exists():
        document = json.loads(arguments.output.read_text("utf-8"))
    found = {each["name"]: each for each in document["fleets"]}

    def note() -> None:
        fleets = [found[name] for name in names if name in found]
        document.update(fleets=fleets, summary=summary(fleets))
        if arguments.output:
            arguments.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    if not arguments.fleet:
        document["beside"] = {**circumstances(), **measure_beside()}
        note()
    for case in () if arguments.beside else FLEETS:
        if arguments.fleet and case.name not in arguments.fleet:
            continue
        found[case.name] = {**circumstances(), **measure_fleet(case)}
        _print(found[case.name])
        note()
    print(json.dumps(document["summary"], indent=1))


def measure_beside() -> Document:
    """Return what a slow agent does to a fast one that has room for the model.

    Two clusters stand at the same time and are asked in turn: the fast agent alone, and both.
    """
    fast = Machine(cores=0.8, core=0)
    slow = Machine(cores=0.1, core=1, memory="6G")
    alone = FleetCase(name="alone", machines=(fast,), model=BESIDE_MODEL)
    both = FleetCase(name="both", machines=(fast, slow), model=BESIDE_MODEL)
    rates: dict[str, list[float]] = {"alone": [], "both": [], "both, by memory": []}
    with contextlib.ExitStack() as opened:
        served = []
        for case, objective in ((alone, None), (both, None), (both, "memory")):
            if objective is None:
                directory = Path(opened.enter_context(tempfile.TemporaryDirectory()))
                fleet = opened.enter_context(throttled_fleet(directory, case.machines))
            each = _Served(fleet=fleet, case=case, model=_model(case.model))
            name = objective or "model"
            stages = each.deploy(name, objective)
            each.tokens_per_second(name, NUM_TOKENS)
            served.append((each, name, stages))
        for _ in range(BESIDE_ROUNDS):
            for (each, name, _), found in zip(served, rates.values(), strict=True):
                found.append(each.tokens_per_second(name, 2 * NUM_TOKENS))
    ratios = {
        name: statistics.median(a / b for a, b in zip(found, rates["alone"], strict=True))
        for name, found in rates.items()
    }
    print("beside:", {name: round(ratio, 3) for name, ratio in ratios.items()})
    return {
        "machines": [asdict(fast), asdict(slow)],
        "model": BESIDE_MODEL,
        "layouts": {name: str(stages) for name, (_, _, stages) in zip(rates, served, strict=True)},
        "tokens_per_second": rates,
        "ratio": ratios,
    }


def measure_fleet(case: FleetCase) -> Document:
    """Return what was predicted of a fleet, before and after it served, and what was measured."""
    with (
        tempfile.TemporaryDirectory() as directory,
        throttled_fleet(Path(directory), case.machines, case.distances) as fleet,
    ):
        served = _Served(fleet=fleet, case=case, model=_model(case.model))
        first = served.chosen()
        chosen = layout_of(first, fleet)
        before: dict[Layout, Document] = {chosen: first}
        cores = [machine.cores for machine in case.machines]
        for layout in alternatives(chosen, len(cores), cores):
            if len(before) > NUM_OTHERS:
                break
            plan = None if layout in before else served.plan(layout)
            if plan is not None and _predicted(case, plan) > LEAST_SPEED * _predicted(case, first):
                before[layout] = plan
        measured = [[served.measure(layout, 0) for layout in before]]
        second = served.chosen()
        rechosen = layout_of(second, fleet)
        after = {layout: served.plan(layout) or {} for layout in before}
        after[rechosen] = second
        for number in range(1, NUM_ROUNDS):
            measured.append([served.measure(layout, number) for layout in after])
    return {
        "name": case.name,
        "machines": [asdict(each) for each in case.machines],
        "distances": [asdict(each) for each in case.distances],
        "model": case.model,
        "num_streams": case.num_streams,
        "chosen_before": str(chosen),
        "chosen": str(rechosen),
        "plans": [
            _row(case, layout, before.get(layout), after[layout], measured) for layout in after
        ],
    }


def summary(fleets: Sequence[Mapping[str, Any]]) -> Document:
    """Return the figures that the aims are about, over all fleets."""
    first, chosen = (
        [
            (fleet, plan)
            for fleet in fleets
            for plan in fleet["plans"]
            if plan["layout"] == fleet[which]
        ]
        for which in ("chosen_before", "chosen")
    )
    everything = [plan for fleet in fleets for plan in fleet["plans"]]
    return {
        "num_fleets": len(fleets),
        "error_of_chosen_before": _errors(plan["error_before"] for _, plan in first),
        "error_of_chosen_after": _errors(plan["error_after"] for _, plan in chosen),
        "error_of_all_before": _errors(plan["error_before"] for plan in everything),
        "error_of_all_after": _errors(plan["error_after"] for plan in everything),
        "chosen_to_best": {
            fleet["name"]: round(
                plan["tokens_per_second"]
                / max(other["tokens_per_second"] for other in fleet["plans"]),
                3,
            )
            for fleet, plan in chosen
        },
    }


def _errors(values: Any) -> Document:
    errors = sorted(abs(each) for each in values if each is not None)
    if not errors:
        return {}
    return {
        "median": round(statistics.median(errors), 3),
        "worst": round(errors[-1], 3),
        "num_plans": len(errors),
    }


def _row(
    case: FleetCase,
    layout: Layout,
    before: Document | None,
    after: Document,
    measured: Sequence[Sequence[Measured]],
) -> Document:
    """Return one plan's figures: each prediction is compared with what was measured after it."""
    rounds = [each.samples for of_round in measured for each in of_round if each.layout == layout]
    rates = [None if plan is None else _predicted(case, plan) for plan in (before, after)]
    first, last = statistics.median(rounds[0]), statistics.median(rounds[-1])
    return {
        "layout": str(layout),
        "tokens_per_second": statistics.median(rate for samples in rounds for rate in samples),
        "rounds": rounds,
        "predicted_before": rates[0],
        "predicted_after": rates[1],
        "error_before": None if rates[0] is None else rates[0] / first - 1,
        "error_after": None if rates[1] is None else rates[1] / last - 1,
        "stages_before": None if before is None else _stages(before),
        "stages_after": _stages(after),
        "prediction_after": after["prediction"],
    }


def _stages(plan: Document) -> list[Document]:
    return [stage["predicted"] for stage in plan["stages"]]


def _predicted(case: FleetCase, plan: Document) -> float:
    name = "tokens_per_second" if case.num_streams == 1 else "total_tokens_per_second"
    rate: float = plan["prediction"][name]
    return rate


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    fleet: ThrottledFleet
    case: FleetCase
    model: Path

    def chosen(self) -> Document:
        """Return the plan that Potluck chooses."""
        return self.fleet.coordinator.ask("plan", **self._request(None))

    def plan(self, layout: Layout) -> Document | None:
        """Return the plan of a layout; None if it does not fit."""
        try:
            return self.fleet.coordinator.ask("plan", **self._request(layout))
        except PotluckError:
            return None

    def deploy(self, name: str, objective: str | None) -> Layout:
        """Deploy as Potluck chooses; return where."""
        request = self._request(None)
        if objective is not None:
            request["objective"] = objective
        deployed = self.fleet.coordinator.ask("deploy", model_id=name, **request)
        return layout_of(deployed, self.fleet)

    def measure(self, layout: Layout, number: int) -> Measured:
        """Deploy in this way, ask several times, and undeploy."""
        name = f"round-{number}-{layout.slug}"
        agent = self.fleet.coordinator
        deployed = agent.ask("deploy", model_id=name, **self._request(layout))
        try:
            if layout_of(deployed, self.fleet) != layout:
                raise RuntimeError(f"{layout_of(deployed, self.fleet)} instead of {layout}")
            self.tokens_per_second(name, 4)
            rate = self.tokens_per_second(name, 6)
            is_slow = rate / self.case.num_streams < 1 / SLOW_SECONDS
            num_tokens = SLOW_NUM_TOKENS if is_slow else NUM_TOKENS
            samples = [self.tokens_per_second(name, num_tokens) for _ in range(NUM_REQUESTS)]
        finally:
            agent.ask("undeploy", name=name)
        print(f"  {layout}: {statistics.median(samples):.2f} tokens/s", flush=True)
        return Measured(layout=layout, samples=tuple(samples))

    def _request(self, layout: Layout | None) -> Document:
        num_streams = self.case.num_streams
        return {
            "model": str(self.model),
            "context_tokens": CONTEXT_TOKENS,
            "cache_tokens": CONTEXT_TOKENS * num_streams,
            "objective": "latency" if num_streams == 1 else "throughput",
            "num_streams": num_streams,
            "rebalance": "never",
            "layout": [] if layout is None else layout.request(self.fleet),
        }

    def tokens_per_second(self, name: str, num_tokens: int) -> float:
        """Return the rate of all streams together, while all of them decode."""
        port = self.fleet.port
        streams = [TokenStream() for _ in range(self.case.num_streams)]

        def read(index: int) -> Callable[[], None]:
            prompt = random_prompt(random.Random(index), PROMPT_TOKENS)
            ask = Ask(prompt=prompt, max_tokens=num_tokens, seed=index)
            return lambda: streams[index].read(port, name, ask)

        self.fleet.at_coordinator([read(index) for index in range(len(streams))])
        for stream in streams:
            if not stream.is_whole or stream.num_tokens != num_tokens:
                raise RuntimeError(f"an answer failed: {stream.status} {stream.error}")
        return joint_rate([stream.times for stream in streams], num_tokens)


def _model(name: str) -> Path:
    """Return a model of random weights, which is made if it is not there."""
    shape, _, type_name = name.partition("-")
    return model_of(_MODELS, shape, type_name)


def _print(fleet: Document) -> None:
    print(fleet["name"])
    for plan in fleet["plans"]:
        mark = "*" if plan["layout"] == fleet["chosen"] else " "
        before = plan["error_before"]
        print(
            f" {mark} {plan['layout']:32} {plan['tokens_per_second']:7.2f} tokens/s   predicted "
            f"{'' if before is None else f'{before:+7.1%}'}, after it served "
            f"{plan['error_after']:+7.1%}"
        )


if __name__ == "__main__":
    main()
