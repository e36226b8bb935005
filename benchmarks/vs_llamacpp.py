"""Compare Potluck with llama.cpp on the same files: METHODOLOGY, "Comparison with llama.cpp".

    python benchmarks/vs_llamacpp.py OUT.json [--llama-bench PATH] [--shape Llama-3.2-1B …]
        [--claim decode prefill …] [--type Q8_0 …] [--llama-bench-avx2 PATH] [--no-repack]
        [--quick]

Without ``--llama-bench`` the package ``xllamacpp`` is the peer (the extra ``bench``). Makes the
model files that are missing, in ``--directory``. Every run is a process of its own, and no two
run at the same time.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from busy import busy
from circumstances import circumstances
from command_line import documented_parser
from comparison import (
    CLAIMS,
    Limits,
    Phase,
    Rates,
    Row,
    Samples,
    Scope,
    Setting,
    Side,
    answer,
    median_of,
    questions,
    settings_of,
    work_of,
)
from llamacpp import Build, LlamaBench, Peer, Xllamacpp
from model_shapes import SHAPES, Shape
from peer_process import Run, RunFailedError, published
from potluck_bench import run_potluck
from random_gguf import GGUF_TYPES, write_gguf
from shapes import made

from potluck.host.cores import default_num_threads

SCHEMA = "potluck.benchmark.vs_llamacpp/1"
TYPES = ("Q8_0", "Q4_0", "Q4_K_M", "BF16")
ISAS = ("avx2", "avx512")
_QUICK = dataclasses.replace(SHAPES["100M"], num_layers=2, vocab_size=4096)
_ALL_SHAPES = {name: shape for name, shape in SHAPES.items() if shape.vocab_size} | {
    "quick": _QUICK
}


@dataclass(slots=True, kw_only=True)
class Session:
    """The measurements of one shape. ``runs`` and ``seen_limits`` grow."""

    shape_name: str
    directory: Path
    peers: Mapping[str | None, Peer]
    num_threads: int
    num_rounds: int
    num_repeats: int
    timeout_seconds: float
    flash_attention: dict[str | None, bool] = field(default_factory=dict)
    samples: dict[tuple[Side, Setting], Rates] = field(default_factory=dict)
    seen_limits: list[Limits] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def shape(self) -> Shape:
        """The shape of the model files."""
        return _ALL_SHAPES[self.shape_name]

    @property
    def limits(self) -> Limits:
        """The medians of the limits in plain runs: on a shared machine, these are disturbed as much
        as the rates that are compared with them.
        """
        return Limits(
            read_bytes_per_second=median_of(
                each.read_bytes_per_second for each in self.seen_limits
            ),
            int8_operations_per_second=median_of(
                each.int8_operations_per_second for each in self.seen_limits
            ),
        )

    def model(self, type_name: str) -> Path:
        """Return the path of a type's file; create the file if it is missing."""
        path = self.directory / f"{self.shape_name}-{type_name}.gguf"
        return made(path, lambda each: write_gguf(self.shape, each, type_name))

    def measure(self, setting: Setting) -> None:
        """Run both sides alternately, once per round. llama.cpp does not run again what it ran for
        another setting.
        """
        is_known = (Side.THEIRS, setting.theirs) in self.samples
        with busy(int(setting.is_busy), core=max(os.sched_getaffinity(0))):
            for _ in range(self.num_rounds):
                self._ours(setting)
                if setting.isa in self.peers and not is_known:
                    self._theirs(setting.theirs)

    def _ours(self, setting: Setting) -> None:
        run = run_potluck(
            self.model(setting.type_name),
            setting,
            num_repeats=self.num_repeats,
            timeout_seconds=self.timeout_seconds,
        )
        is_whole = setting.num_threads == self.num_threads
        if is_whole and not setting.is_busy and setting.isa is None:
            self.seen_limits.append(run.outcome.limits)
        self._keep(Side.OURS, setting, run)

    def _theirs(self, setting: Setting) -> None:
        """Run llama.cpp with the better attention, or with both deep in a context."""
        if setting.isa not in self.flash_attention:
            self.flash_attention[setting.isa] = self._better_attention(setting)
        if not setting.depth_tokens:
            chosen = self.flash_attention[setting.isa]
            self._keep(Side.THEIRS, setting, self._run(setting, flash_attention=chosen))
            return
        runs = [self._run(setting, flash_attention=each) for each in (False, True)]
        best = max(runs, key=lambda run: run.outcome.rates.median(Phase.DECODE) or 0.0)
        for run in runs:
            self._keep(Side.THEIRS, setting, run, counted=run is best)

    def _better_attention(self, setting: Setting) -> bool:
        """Return whether flash attention is faster overall, by trial runs that do not count."""
        tried = dataclasses.replace(
            setting, depth_tokens=0, num_sequences=1, num_prompt_tokens=128, is_busy=False
        )
        products = {}
        for each in (False, True):
            run = self._run(tried, flash_attention=each)
            self._keep(Side.THEIRS, tried, run, counted=False)
            rates = run.outcome.rates
            products[each] = (rates.median(Phase.PREFILL) or 0.0) * (
                rates.median(Phase.DECODE) or 0.0
            )
        return products[True] > products[False]

    def _run(self, setting: Setting, *, flash_attention: bool) -> Run:
        return self.peers[setting.isa].run(
            self.model(setting.type_name),
            setting,
            flash_attention=flash_attention,
            num_repeats=self.num_repeats,
        )

    def _keep(self, side: Side, setting: Setting, run: Run, *, counted: bool = True) -> None:
        rates = run.outcome.rates
        self.runs.append(
            {
                "side": side.value,
                "is_counted": counted,
                "command": run.command,
                "isa": setting.isa,
                "is_busy": setting.is_busy,
                "prefill_tokens_per_second": rates.prefill,
                "decode_tokens_per_second": rates.decode,
                "decode_outside_products": rates.outside,
                "decode_of_bandwidth": rates.of_bandwidth,
                "failures": rates.failures,
                "limits": asdict(run.outcome.limits) if side is Side.OURS else None,
            }
        )
        if counted:
            key = (side, setting)
            self.samples[key] = self.samples.get(key, Rates()) + rates


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = documented_parser(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--llama-bench", type=Path, help="a build for this CPU")
    for isa in ISAS:
        parser.add_argument(f"--llama-bench-{isa}", type=Path, help=f"a build for {isa} alone")
    parser.add_argument("--no-repack", action="store_true", help="of llama-bench's weights")
    parser.add_argument("--directory", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--shape", nargs="+", choices=_ALL_SHAPES, default=["Llama-3.2-1B"])
    parser.add_argument("--type", nargs="+", choices=GGUF_TYPES, default=list(TYPES))
    parser.add_argument("--claim", nargs="+", choices=CLAIMS, default=list(CLAIMS))
    parser.add_argument("--threads", type=int, default=default_num_threads())
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--decode-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=2, help="of A B")
    parser.add_argument("--repeats", type=int, default=1, help="counted, in each process")
    parser.add_argument("--run-seconds", type=float, default=300.0, help="deadline of a process")
    parser.add_argument("--quick", action="store_true", help="no measurement: that it works")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.shape, arguments.type = ["quick"], arguments.type[:1]
        arguments.prompt_tokens, arguments.decode_tokens = 16, 4
        arguments.rounds, arguments.repeats = 1, 1
    return arguments


def peers_of(arguments: argparse.Namespace) -> dict[str | None, Peer]:
    """Return the build for this CPU under None, and builds for one instruction set by its name."""
    seconds = arguments.run_seconds
    best: Peer = Xllamacpp(timeout_seconds=seconds)
    if arguments.llama_bench is not None:
        best = LlamaBench(
            executable=arguments.llama_bench.absolute(),
            timeout_seconds=seconds,
            repacks=not arguments.no_repack,
        )
    peers: dict[str | None, Peer] = {None: best}
    for isa in ISAS:
        path = getattr(arguments, f"llama_bench_{isa}")
        if path is not None:
            peers[isa] = LlamaBench(executable=path.absolute(), timeout_seconds=seconds)
    return peers


def described(peers: Mapping[str | None, Peer], model: Path) -> dict[str | None, Build | str]:
    """Describe each build, or say why it does not start."""
    builds: dict[str | None, Build | str] = {}
    for isa, peer in peers.items():
        try:
            builds[isa] = peer.describe(model)
        except RunFailedError as error:
            builds[isa] = str(error)
    return builds


def cpu_has_amx() -> bool:
    """Return whether the kernel lists 8-bit tiles among the features of the CPU."""
    return "amx_int8" in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()


def measured_rows(session: Session, scope: Scope, claims: Sequence[str], build: Any) -> list[Row]:
    """Measure every setting that the claims need, then answer the claims."""
    selected_questions = questions(claims, scope)
    for setting in settings_of(selected_questions):
        started = time.monotonic()
        session.measure(setting)
        seconds = time.monotonic() - started
        print(f"{session.shape_name} {setting.type_name}: {seconds:.0f} s", file=sys.stderr)
    counts = not cpu_has_amx() or (isinstance(build, Build) and build.has_amx)
    samples: Samples = session.samples
    return [
        answer(
            question,
            samples,
            work_of(session.shape, question.setting.type_name),
            session.limits,
            counts=counts,
        )
        for question in selected_questions
    ]


def lines_of(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table as text; a target follows the figure that it applies to."""
    yield (
        f"{'':24} {'type':7} {'ours':>8} {'theirs':>8} {'ratio':>14} {'of limit':>16} "
        f"{'theirs':>7} {'of own':>14} {'theirs':>7} {'outside':>14}"
    )
    for row in rows:
        yield (
            f"{row.claim:24} {row.type_name:7} {_number(row.ours):>8} {_number(row.theirs):>8} "
            f"{_with_aim(_ratio(row.ratio), _ratio(row.aims.ratio)):>14} "
            f"{_with_aim(_percent(row.fraction), _percent(row.aims.fraction)):>16} "
            f"{_percent(row.their_fraction):>7} "
            f"{_with_aim(_ratio(row.own_ratio), _ratio(row.aims.own_ratio)):>14} "
            f"{_ratio(row.their_own_ratio):>7} "
            f"{_with_aim(_percent(row.outside), _percent(row.aims.outside), '≤'):>14} "
            f"{'; '.join((_verdict(row), *row.notes))}"
        )


def _verdict(row: Row) -> str:
    return {True: "met", False: "missed", None: "–"}[row.is_met]


def _with_aim(figure: str, aim: str, relation: str = "≥") -> str:
    return figure if aim == "–" else f"{figure} ({relation} {aim})"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.0f} %"


def row_document(row: Row) -> dict[str, Any]:
    """Return a row as a document, with the values derived from it."""
    return {**asdict(row), "ratio": row.ratio, "is_met": row.is_met}


def main() -> None:
    """Measure, print and write; what was measured is written after every shape."""
    arguments = parse_arguments()
    scope = Scope(
        types=arguments.type,
        isas=ISAS,
        num_threads=arguments.threads,
        num_prompt_tokens=arguments.prompt_tokens,
        num_decode_tokens=arguments.decode_tokens,
    )
    peers = peers_of(arguments)
    document: dict[str, Any] = {"schema": SCHEMA, **circumstances(), "shapes": []}
    document["command"] = published(document["command"])
    for name in arguments.shape:
        session = Session(
            shape_name=name,
            directory=arguments.directory,
            peers=peers,
            num_threads=arguments.threads,
            num_rounds=arguments.rounds,
            num_repeats=arguments.repeats,
            timeout_seconds=arguments.run_seconds,
        )
        builds = described(peers, session.model(scope.types[0]))
        for isa, build in builds.items():
            print(f"llama.cpp{'' if isa is None else f' for {isa}'}: {_build_text(build)}")
        rows = measured_rows(session, scope, arguments.claim, builds[None])
        works = {each: work_of(session.shape, each) for each in scope.types}
        document["shapes"].append(
            {
                "shape": name,
                "builds": {
                    isa or "best": asdict(build) if isinstance(build, Build) else {"failed": build}
                    for isa, build in builds.items()
                },
                "cpu_has_amx": cpu_has_amx(),
                "flash_attention": {
                    isa or "best": chosen for isa, chosen in session.flash_attention.items()
                },
                "limits": asdict(session.limits),
                "work_per_token": {each: asdict(work) for each, work in works.items()},
                "rows": [row_document(row) for row in rows],
                "runs": session.runs,
            }
        )
        arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"\n{name}: {_format_limits(session.limits)}")
        for type_name, work in works.items():
            print(f"{type_name}: {work.read_bytes / 1e9:.3f} GB per token")
        print("\n".join(lines_of(rows)))


def _build_text(build: Build | str) -> str:
    if isinstance(build, str):
        return f"does not start: {build}"
    features = "features unknown" if build.features is None else " ".join(build.features)
    return f"{build.name}, commit {build.commit}, {build.compiler}: {features}"


def _format_limits(limits: Limits) -> str:
    read, peak = limits.read_bytes_per_second, limits.int8_operations_per_second
    return (
        f"{'unknown' if read is None else f'{read / 1e9:.1f}'} GB/s read, "
        f"{'unknown' if peak is None else f'{peak / 1e12:.2f}'} Tops in int8"
    )


if __name__ == "__main__":
    main()
