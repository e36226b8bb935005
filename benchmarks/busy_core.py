"""Measure how much a process that keeps one core busy slows down a model.

    python benchmarks/busy_core.py MODEL OUT.json [--threads 2] [--core N] [--rounds 5]

Three ways take turns: N threads alone (A), one thread alone (B), and N threads while another
process runs ``while True: pass`` (C), which is bound to ``--core``, or to none without it. Each
sample is a prompt of random tokens and the tokens that follow it. The ratios of interest are A / B
(what threads bring) and C / B (whether a busy core costs more than it is worth).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

from busy import busy
from circumstances import circumstances
from command_line import documented_parser

from potluck.host.cores import default_num_threads
from potluck.local import Model

SCHEMA = "potluck.benchmark.busy_core/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Tokens per second of one run."""

    prefill: float
    decode: float


def measure(model: Model, prompt_tokens: int, decode_tokens: int) -> Sample:
    """Generate one text after a prompt of random tokens, and return the rates."""
    draw = random.Random(0)  # the same prompt in every run
    vocab_size = model.description.config.vocab_size
    prompt = [draw.randrange(vocab_size) for _ in range(prompt_tokens)]
    generation = model.generate(prompt, max_tokens=decode_tokens, ignore_eos=True, temperature=0.0)
    timings = generation.result().timings
    return Sample(
        prefill=timings.prefill_tokens_per_second,
        decode=(timings.num_new_tokens - 1) / timings.decode_seconds,
    )


def ratios_of(samples: list[Sample], base: list[Sample]) -> Sample:
    """Return the median over rounds of ``samples / base``, for prefill and for decoding."""
    pairs = list(zip(samples, base, strict=True))
    return Sample(
        prefill=statistics.median(a.prefill / b.prefill for a, b in pairs),
        decode=statistics.median(a.decode / b.decode for a, b in pairs),
    )


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = documented_parser(__doc__)
    parser.add_argument("model", help="a directory, a .gguf file, or demo")
    parser.add_argument("out", type=Path, help="where the JSON goes")
    parser.add_argument("--threads", type=int, default=default_num_threads())
    parser.add_argument("--core", type=int, help="the busy process is bound to this core")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--decode", type=int, default=64)
    return parser.parse_args()


def main() -> None:
    """Measure alternately, print the ratios, and write the file."""
    arguments = parse_arguments()
    record = {"schema": SCHEMA, **circumstances()}
    samples: dict[str, list[Sample]] = {"alone": [], "one_thread": [], "busy": []}
    with (
        Model.open(arguments.model, num_threads=arguments.threads, prefix_cache=False) as threads,
        Model.open(arguments.model, num_threads=1, prefix_cache=False) as one_thread,
    ):
        for round_index in range(arguments.rounds + 1):
            for name, model in (("alone", threads), ("one_thread", one_thread), ("busy", threads)):
                num_busy = int(name == "busy")
                with busy(num_busy, core=arguments.core, in_session=True):
                    sample = measure(model, arguments.prompt, arguments.decode)
                if round_index > 0:  # the first warms up
                    samples[name].append(sample)
    ratios = {
        f"{name}_over_one_thread": ratios_of(samples[name], samples["one_thread"])
        for name in ("alone", "busy")
    }
    for name, each in ratios.items():
        print(f"{name:22} prefill {each.prefill:.2f}  decode {each.decode:.2f}")
    document = {
        **record,
        "model": Path(arguments.model).name,
        "num_threads": arguments.threads,
        "busy_core": arguments.core,
        "prompt_tokens": arguments.prompt,
        "decode_tokens": arguments.decode,
        "tokens_per_second": {
            name: [asdict(sample) for sample in each] for name, each in samples.items()
        },
        "ratios": {name: asdict(each) for name, each in ratios.items()},
    }
    arguments.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
