"""Measure steps in the engine alone, of a whole model and of its stages; print one JSON object.

    taskset -c 0 python benchmarks/stage_times.py MODEL --stages 2 --streams 8

For ``pipelines.py``, which computes from it the most that a pipeline can gain.
"""

from __future__ import annotations

import json
import statistics
import time

from command_line import documented_parser

from potluck.local.model import Model
from potluck.types.step import (
    KV_BLOCK_TOKENS,
    SamplingParams,
    SequenceId,
    SequenceOpening,
    SequenceSlice,
    Step,
    StepId,
)

_CONTEXT_TOKENS = 128
_POSITION = 80
"""The position of the decoded tokens: about the middle of the answers in ``pipelines.py``."""
_TOKEN = 300
_SAMPLING = SamplingParams(temperature=1.0, logit_bias=((2, -100.0), (6, -100.0)))


def main() -> None:
    """Load the model whole and in stages, take turns, print medians."""
    parser = documented_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    group = -(-arguments.streams // arguments.stages)
    cache_tokens = arguments.streams * _CONTEXT_TOKENS
    seconds: dict[tuple[int, int, int], list[float]] = {}
    models = [
        Model.open(
            arguments.model,
            stages=num_stages,
            context_tokens=_CONTEXT_TOKENS,
            cache_tokens=cache_tokens,
            num_threads=1,
        )
        for num_stages in (1, arguments.stages)
    ]
    for number in range(arguments.rounds + 1):  # the first round warms up
        for model in models:
            for num_sequences in sorted({1, group, arguments.streams}):
                step, hidden = _step(num_sequences), None
                for index, stage in enumerate(model.stages):
                    started = time.perf_counter()
                    hidden = stage.engine.step(step, hidden).hidden
                    elapsed = time.perf_counter() - started
                    if number > 0:
                        key = (len(model.stages), index, num_sequences)
                        seconds.setdefault(key, []).append(elapsed)
    for model in models:
        model.close()
    medians = {key: statistics.median(each) for key, each in seconds.items()}
    whole = medians[1, 0, arguments.streams]
    parts = [medians[arguments.stages, index, group] for index in range(arguments.stages)]
    document = {
        "steps": [
            {"num_stages": num, "stage": index, "num_sequences": count, "seconds": each}
            for (num, index, count), each in sorted(medians.items())
        ],
        "decode_ratio_bound": whole / (arguments.stages * max(parts)),
    }
    print(json.dumps(document))


def _step(num_sequences: int) -> Step:
    """Return a step with one sampled token per sequence, which opens and closes the sequences."""
    blocks = _CONTEXT_TOKENS // KV_BLOCK_TOKENS
    sequences = [SequenceId(index) for index in range(num_sequences)]
    return Step(
        step_id=StepId(0),
        slices=tuple(
            SequenceSlice(
                sequence_id=sequence,
                tokens=(_TOKEN + sequence,),
                start_position=_POSITION,
                block_table=tuple(
                    range(sequence * blocks, sequence * blocks + _POSITION // KV_BLOCK_TOKENS + 1)
                ),
                sample=True,
            )
            for sequence in sequences
        ),
        opened=tuple(
            SequenceOpening(sequence_id=sequence, sampling=_SAMPLING, prompt_tokens=(_TOKEN,))
            for sequence in sequences
        ),
        closed=tuple(sequences),
    )


if __name__ == "__main__":
    main()
