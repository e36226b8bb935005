"""With drafts every sequence is given what it is given without, bit for bit.

Random models in the reference engine and in the native one, cut into stages; requests of all kinds;
drafters that are right or wrong at random, or always wrong. Stages skip cancelled steps or not, as
chance has it, and sequences are preempted, cancelled and computed again over other stages. How far
is drafted is drawn as well. (The bits of the reference engine depend on what else a step has, so
its log-probabilities are not compared.)
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from support.engines.native_pipeline import small_config
from support.engines.pools import pool_of
from support.engines.stages import cut
from support.models.canonical_weights import load_canonical_weights
from support.models.configs import make_config
from support.models.random_weights import load_random_weights
from support.models.recurrent_configs import (
    RECURRENCES,
    halves_config,
    hybrid_config,
    latent_config,
    parallel_config,
)
from support.reference.engine import ReferenceEngine
from support.scheduling.drafters import InstantSource, QuietDrafter
from support.text.grammars import BYTES, TOKENS

from potluck.engines.native.engine import NativeEngine
from potluck.grammars import build
from potluck.grammars.step_masks import StepMasks
from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.scheduling.draft_lengths import DraftLengths
from potluck.scheduling.limits import SchedulerLimits
from potluck.scheduling.scheduler import Scheduler
from potluck.types.drafting import DraftTotals
from potluck.types.engine import Engine
from potluck.types.model import ModelConfig
from potluck.types.program import Program
from potluck.types.sequence import CommittedToken, SequenceRequest
from potluck.types.step import SampledToken, SamplingParams, SequenceId, Step, StepId
from potluck.types.tensor import TensorFormat

VOCAB_SIZE = len(TOKENS.data)
CONTEXT_TOKENS = 112
NUM_BLOCKS = 24
NUM_STATES = 8
MAX_STEP_TOKENS = 40

Plain = tuple[int, int, float | None, tuple[tuple[int, float], ...], bool]
MakeEngine = Callable[[Program], Engine]

ATTENTION_CONFIGS = {
    "plain": make_config(num_layers=3),
    "windows": make_config(num_layers=3, sliding_windows=(5, None, 21), qk_norm=True),
    "biases": make_config(qkv_bias=True, output_bias=True, tied_head=True),
    "latent": latent_config(),
}
STATE_CONFIGS = {
    "gated_delta": hybrid_config(RECURRENCES["gated_delta"]),
    "short_conv": hybrid_config(RECURRENCES["short_conv"]),
    "mamba": hybrid_config(RECURRENCES["mamba"]),
    "parallel": parallel_config(),
    "halves": halves_config(),
}
CONFIGS = ATTENTION_CONFIGS | STATE_CONFIGS
FORMATS = (TensorFormat.F32, TensorFormat.BF16, TensorFormat.Q8_0, TensorFormat.Q4_K)

GRAMMARS = (
    build.regex("[a-f]{3,40}x"),
    build.choice(["abcabcabcabcabc", "abcabd"]),
    build.json_schema({"type": "array", "items": {"type": "integer"}, "maxItems": 9}),
)


def reference(program: Program) -> Engine:
    engine = ReferenceEngine(program, num_blocks=NUM_BLOCKS, num_states=NUM_STATES)
    load_canonical_weights(engine, program)
    return engine


def native(program: Program) -> NativeEngine:
    return NativeEngine(
        program,
        num_blocks=NUM_BLOCKS,
        num_states=NUM_STATES,
        max_step_tokens=MAX_STEP_TOKENS,
        pool=pool_of(1),
    )


def native_float(program: Program) -> Engine:
    engine = native(program)
    load_canonical_weights(engine, program)
    return engine


def native_in(fmt: TensorFormat) -> MakeEngine:
    def make(program: Program) -> Engine:
        engine = native(program)
        load_random_weights(engine, program, fmt)
        return engine

    return make


def engines_of(config: ModelConfig, make: MakeEngine, boundaries: Sequence[int]) -> list[Engine]:
    ropes = rope_tables(config, CONTEXT_TOKENS)
    return [
        make(build_program(config, shard, context_tokens=CONTEXT_TOKENS, ropes=ropes))
        for shard in cut(len(config.layers), boundaries)
    ]


@dataclass
class Stages:
    """Engines that run steps when they are told, and skip some of those that are cancelled."""

    engines: Sequence[Engine]
    draws: random.Random
    steps: deque[Step] = field(default_factory=deque)
    cancelled: set[StepId] = field(default_factory=set)
    num_skipped: int = 0
    masks: StepMasks = field(default_factory=lambda: StepMasks(lambda: BYTES))

    def submit(self, step: Step) -> None:
        self.steps.append(step)
        self.cancelled.update(step.cancels)

    def run_oldest(self) -> tuple[StepId, tuple[SampledToken, ...]]:
        step, hidden = self.steps.popleft(), None
        num_run = len(self.engines)
        if step.step_id in self.cancelled and step.can_be_skipped:
            num_run = self.draws.randint(0, num_run)
        for engine in self.engines[: min(num_run, len(self.engines) - 1)]:
            hidden = engine.step(step, hidden).hidden
        if num_run < len(self.engines):
            self.num_skipped += 1
            return step.step_id, ()
        result = self.engines[-1].step(step, hidden, self.masks.before(step))
        sampled = self.masks.marked(result.sampled)
        self.masks.after(step, result.sampled)
        return step.step_id, sampled

    def reset(self) -> None:
        for engine in self.engines:
            engine.reset()
        self.steps.clear()
        self.cancelled.clear()
        self.masks.reset()


@dataclass
class KnownDrafter(QuietDrafter):
    """Guesses ``text``, with errors."""

    text: Sequence[int]
    error: float
    draws: random.Random

    def propose(self, tokens: Sequence[int], k: int) -> Sequence[int] | None:
        """See ``Drafter``; now and then it has no answer yet."""
        if self.draws.random() < 0.1:
            return None
        guesses = [*self.text[len(tokens) : len(tokens) + k]]
        guesses += [0] * (k - len(guesses))
        return [
            self.draws.randrange(VOCAB_SIZE) if self.draws.random() < self.error else guess
            for guess in guesses[: self.draws.randint(0, k)]
        ]


@dataclass
class KnownDrafts(InstantSource):
    """Drafters that know what their sequences are given without drafts."""

    texts: dict[SequenceRequest, list[int]]
    draws: random.Random

    def open(self, sequence_id: SequenceId, request: SequenceRequest) -> KnownDrafter:
        """See ``DraftSource``."""
        error = self.draws.choice((0.0, 0.02, 0.2, 1.0))
        return KnownDrafter(self.texts[request], error, self.draws)


def plain(token: CommittedToken) -> Plain:
    top = tuple((each.token, each.logprob) for each in token.top)
    return token.position, token.token, token.logprob, top, token.finish_reason is not None


def without_scores(token: Plain) -> Plain:
    """``token`` without log-probabilities."""
    position, chosen, _, _, is_last = token
    return position, chosen, None, (), is_last


def draw_request(draws: random.Random) -> SequenceRequest:
    alphabet = draws.choice((VOCAB_SIZE, 12))
    prompt = tuple(draws.randrange(alphabet) for _ in range(draws.randint(1, 50)))
    logprobs = draws.random() < 0.4
    sampled = SamplingParams(
        temperature=draws.choice((0.0, 0.5, 1.0)),
        top_k=draws.choice((None, 5)),
        top_p=draws.choice((1.0, 0.9)),
        min_p=draws.choice((0.0, 0.1)),
        repetition_penalty=draws.choice((1.0, 1.3)),
        frequency_penalty=draws.choice((0.0, 0.4)),
        presence_penalty=draws.choice((0.0, -0.3)),
        logit_bias=((3, 1.5),) * (draws.random() < 0.2),
        seed=draws.randrange(1000),
        logprobs=logprobs,
        top_logprobs=draws.choice((0, 3)) * logprobs,
    )
    grammar = draws.choice(GRAMMARS) if draws.random() < 0.3 else None
    return SequenceRequest(
        prompt_tokens=prompt,
        sampling=draws.choice((sampled, replace(sampled, temperature=0.0))),
        max_new_tokens=draws.choice((1, 2, 12, 40, None)),
        stop_tokens=frozenset(
            {256, 258, *(draws.sample(range(VOCAB_SIZE), 12) if draws.random() < 0.5 else ())}
        ),
        score_prompt=draws.random() < 0.15,
        grammar=grammar,
        prediction=prompt[:5],
    )


def limits_of(num_states: int, draws: random.Random) -> SchedulerLimits:
    return SchedulerLimits(
        num_blocks=draws.randint(CONTEXT_TOKENS // 16, NUM_BLOCKS),
        context_tokens=CONTEXT_TOKENS,
        max_step_tokens=draws.choice((3, 17, MAX_STEP_TOKENS)),
        max_step_sequences=draws.choice((1, 3, 6)) if num_states == 0 else 3,
        max_steps_in_flight=draws.choice((1, 2, 4)),
        has_prefix_cache=draws.random() < 0.8,
        num_states=num_states,
    )


def alone(engines: Sequence[Engine], request: SequenceRequest, num_states: int) -> list[Plain]:
    """What the request is given without drafts, when it is the only one."""
    stages = Stages(engines, random.Random(0))
    stages.reset()
    scheduler = Scheduler(
        SchedulerLimits(
            num_blocks=NUM_BLOCKS,
            context_tokens=CONTEXT_TOKENS,
            max_step_tokens=MAX_STEP_TOKENS,
            max_step_sequences=4,
            max_steps_in_flight=1,
            has_prefix_cache=False,
            num_states=num_states,
        )
    )
    scheduler.add(request)
    given: list[Plain] = []
    while (step := scheduler.next_step()) is not None:
        stages.submit(step)
        given += map(plain, scheduler.complete(*stages.run_oldest()))
    return given


def check(
    config: ModelConfig,
    make: MakeEngine,
    seed: str,
    *,
    num_events: int = 260,
    seen: Callable[[Plain], Plain] = lambda token: token,
) -> tuple[DraftTotals, int]:
    """Play random events with drafts, and compare; return how drafts fared, and steps skipped."""
    draws = random.Random(seed)
    config = replace(config, vocab_size=VOCAB_SIZE)
    num_layers = len(config.layers)
    boundaries = sorted(draws.randint(0, num_layers) for _ in range(draws.choice((0, 1, 1, 2))))
    engines = engines_of(config, make, boundaries)
    has_state = any(layer.recurrence is not None for layer in config.layers)
    num_states = NUM_STATES * has_state
    requests = list(dict.fromkeys(draw_request(draws) for _ in range(6)))
    expected = {
        each: [seen(token) for token in alone(engines, each, num_states)] for each in requests
    }
    texts = {
        each: [*each.prompt_tokens, *(token[1] for token in given if token[0] >= length_of(each))]
        for each, given in expected.items()
    }

    stages = Stages(engines, draws)
    stages.reset()
    limits = limits_of(num_states, draws)
    scheduler = Scheduler(limits, KnownDrafts(texts, draws))
    most_live = draws.choice((1, 2, 9))  # steps ahead are for pipelines with little to do
    added_requests: dict[SequenceId, SequenceRequest] = {}
    got: dict[SequenceId, list[Plain]] = {}
    cancelled: set[SequenceId] = set()

    def form() -> bool:
        step = scheduler.next_step()
        if step is not None:
            assert step.num_tokens <= limits.max_step_tokens
            stages.submit(step)
        return step is not None

    def complete() -> None:
        for token in scheduler.complete(*stages.run_oldest()):
            got[token.sequence_id].append(seen(plain(token)))

    for _ in range(num_events):
        match draws.choices(("add", "form", "complete", "cancel", "restart"), (4, 40, 40, 1, 0.3))[
            0
        ]:
            case "add" if len(added_requests) < 12 and scheduler.load.num_sequences < most_live:
                request = draws.choice(requests)
                sequence = scheduler.add(request)
                added_requests[sequence], got[sequence] = request, []
            case "form":
                while form() and draws.random() < 0.7:
                    pass
            case "complete" if stages.steps:
                complete()
            case "cancel" if added_requests:
                sequence = draws.choice(list(added_requests))
                if got[sequence] != expected[added_requests[sequence]]:
                    cancelled.add(sequence)
                scheduler.cancel(sequence)
            case "restart":
                scheduler.restart(limits)
                stages.reset()
            case _:
                pass
    num_idle = 0
    while num_idle < 200 and (scheduler.load.num_sequences or stages.steps):
        num_idle = 0 if form() or stages.steps else num_idle + 1  # a drafter has no answer yet
        if stages.steps:
            complete()

    for sequence, request in added_requests.items():
        whole = expected[request]
        if sequence in cancelled:
            assert got[sequence] == whole[: len(got[sequence])]
        else:
            assert got[sequence] == whole
    assert scheduler.load.num_free_blocks == limits.num_blocks
    return scheduler.load.drafts, stages.num_skipped


def length_of(request: SequenceRequest) -> int:
    return len(request.prompt_tokens)


@pytest.fixture(autouse=True)
def drawn_lengths(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    draws = random.Random(request.node.name)
    monkeypatch.setattr(DraftLengths, "length", lambda *_, **__: draws.randint(0, 9))
    monkeypatch.setattr(DraftLengths, "length_ahead", lambda *_, **__: draws.randint(0, 5))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CONFIGS)
def test_the_reference_engine_gives_the_same_with_drafts(name: str, seed: int) -> None:
    check(CONFIGS[name], reference, f"reference {name} {seed}", num_events=150, seen=without_scores)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", CONFIGS)
def test_the_native_engine_gives_the_same_with_drafts(name: str, seed: int) -> None:
    check(CONFIGS[name], native_float, f"native {name} {seed}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_every_format_gives_the_same_with_drafts(fmt: TensorFormat, seed: int) -> None:
    check(small_config(3), native_in(fmt), f"formats {fmt.name} {seed}")


@pytest.mark.slow
def test_drafts_are_accepted_and_steps_are_cancelled() -> None:
    """The tests above are of something."""
    runs = [
        check(ATTENTION_CONFIGS["plain"], native_float, f"counted {seed}") for seed in range(16)
    ]
    assert sum(totals.num_accepted for totals, _ in runs) > 200
    assert sum(totals.num_drafted - totals.num_accepted for totals, _ in runs) > 200
    assert sum(totals.num_cancelled for totals, _ in runs) > 5
    assert sum(num_skipped for _, num_skipped in runs) > 1
    states = [check(STATE_CONFIGS["mamba"], native_float, f"states {seed}") for seed in range(4)]
    assert sum(totals.num_accepted for totals, _ in states) > 20
