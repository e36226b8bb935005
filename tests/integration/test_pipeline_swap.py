"""Answers whose stages are lost in the middle are those of an undisturbed run, bit for bit.

Tokens, log-probabilities, alternatives, scores and vectors of prompts, and texts; greedy and
sampled, with every penalty; whatever the cut, the threads, the chunks and the blocks of the stages
before and after.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np
import pytest
from support.engines.native_pipeline import CONTEXT_TOKENS, VOCAB_SIZE, Pipeline, small_config
from support.text.byte_tokenizer import ByteTokenizer

from potluck import grammars
from potluck.engines.native.engine import NativeEngine
from potluck.errors import PotluckError
from potluck.grammars.vocabulary import Vocabulary
from potluck.local.generation import Generation, Piece
from potluck.local.pipeline import LocalPipeline
from potluck.scheduling.dispatcher import Dispatcher
from potluck.scheduling.ledger import Update
from potluck.scheduling.limits import SchedulerLimits
from potluck.scheduling.pipeline import OnOutcome, StepOutcome
from potluck.text.detokenize import StreamingDetokenizer
from potluck.types.engine import Engine
from potluck.types.sequence import CommittedToken, Continuation, SequenceRequest
from potluck.types.step import Pooling, SamplingParams, Step
from potluck.types.tensor import TensorFormat
from potluck.types.text import TokenList

NUM_LAYERS = 3
TEXT = tuple(int(token) for token in np.random.default_rng(11).integers(0, VOCAB_SIZE, 120))
PENALTIES = SamplingParams(
    temperature=0.9,
    top_k=50,
    top_p=0.97,
    min_p=0.001,
    repetition_penalty=1.4,
    frequency_penalty=0.7,
    presence_penalty=0.5,
    logit_bias=((3, 2.0),),
    seed=5,
    logprobs=True,
    top_logprobs=4,
)
GREEDY_PENALTIES = SamplingParams(
    temperature=0.0, frequency_penalty=1.5, presence_penalty=0.8, logprobs=True, top_logprobs=2
)

PIECES = [
    *'{}":,.-0123456789 abcdefghijklmnopqrstuvwxyz[]',
    '{"',
    '":',
    '",',
    "true",
    "false",
    "ab",
]
END = VOCAB_SIZE - 1
TOKENS = TokenList(
    data=[piece.encode() for piece in PIECES] + [b""] * (VOCAB_SIZE - len(PIECES)),
    control={END: "<end>"},
    end_tokens=(END,),
)
DOCUMENT = grammars.json_schema(
    {
        "type": "object",
        "properties": {
            "s": {"type": "string", "maxLength": 9},
            "n": {"type": "integer", "minimum": -99, "maximum": 999},
            "b": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        },
        "required": ["s", "n", "b"],
        "additionalProperties": False,
    }
)

REQUESTS = (
    SequenceRequest(prompt_tokens=TEXT[:33], sampling=PENALTIES, max_new_tokens=40),
    SequenceRequest(prompt_tokens=TEXT[40:45], sampling=GREEDY_PENALTIES, max_new_tokens=50),
    SequenceRequest(
        prompt_tokens=TEXT[10:60], sampling=PENALTIES, max_new_tokens=25, score_prompt=True
    ),
    SequenceRequest(
        prompt_tokens=TEXT, sampling=GREEDY_PENALTIES, max_new_tokens=0, score_prompt=True
    ),
    SequenceRequest(
        prompt_tokens=TEXT[20:41],
        sampling=PENALTIES,
        max_new_tokens=60,
        stop_tokens=frozenset({END}),
        grammar=DOCUMENT,
    ),
    SequenceRequest(
        prompt_tokens=TEXT[5:14],
        sampling=GREEDY_PENALTIES,
        max_new_tokens=40,
        stop_tokens=frozenset({END}),
        grammar=DOCUMENT,
    ),
    *(
        SequenceRequest(
            prompt_tokens=TEXT[start:],
            sampling=GREEDY_PENALTIES,
            max_new_tokens=0,
            pooling=pooling,
        )
        for start, pooling in enumerate((Pooling.MEAN, Pooling.LAST, Pooling.CLS, Pooling.MEAN))
    ),
)

Plain = tuple[int, int, float | None, tuple[tuple[int, float], ...], bytes | None]


@dataclass(frozen=True)
class Shape:
    """Stages and the limits of their steps."""

    num_stages: int
    num_threads: int
    chunk: int
    num_blocks: int

    @property
    def limits(self) -> SchedulerLimits:
        return SchedulerLimits(
            num_blocks=self.num_blocks,
            context_tokens=160,
            max_step_tokens=self.chunk,
            max_step_sequences=min(8, self.chunk),
            max_steps_in_flight=self.num_stages,
        )


SHAPES = (Shape(1, 1, 64, 40), Shape(3, 2, 5, 11), Shape(2, 1, 16, 30), Shape(1, 2, 1, 40))


@dataclass
class LosingPipeline:
    """Loses the steps that it is given once ``is_lost(num_untold)``.

    ``num_untold`` tokens were sampled in a step before that one, and nobody was told of them yet.
    """

    engines: Sequence[Engine]
    on_outcome: OnOutcome
    is_lost: Callable[[int], bool]
    num_untold: int = 0
    inner: LocalPipeline = field(init=False)

    def __post_init__(self) -> None:
        self.inner = LocalPipeline(self.engines, self.take, partial(Vocabulary, TOKENS, VOCAB_SIZE))

    def take(self, outcome: StepOutcome) -> None:
        self.num_untold = len(outcome.sampled)
        self.on_outcome(outcome)
        self.num_untold = 0

    def submit(self, step: Step) -> None:
        if not self.is_lost(self.num_untold):
            self.inner.submit(step)

    def close(self) -> None:
        self.inner.close()


class KeptEngine:
    """Its weights stay when a pipeline over it is closed; its sequences do not."""

    def __init__(self, inner: NativeEngine) -> None:
        self._inner = inner
        self.step = inner.step
        self.logits = inner.logits
        self.sink = inner.sink
        self.reset = inner.reset

    def close(self) -> None:
        self._inner.reset()


def attach(
    dispatcher: Dispatcher, shape: Shape, is_lost: Callable[[int], bool] = lambda _: False
) -> None:
    pipeline = Pipeline.make(
        small_config(NUM_LAYERS),
        TensorFormat.Q4_K,
        num_stages=shape.num_stages,
        num_threads=shape.num_threads,
        num_blocks=shape.num_blocks,
        block_seed=shape.chunk,
    )
    dispatcher.attach(
        lambda on_outcome: LosingPipeline(pipeline.engines, on_outcome, is_lost),
        shape.limits,
    )


@contextmanager
def opened(shape: Shape) -> Iterator[Dispatcher]:
    dispatcher = Dispatcher(shape.limits)
    attach(dispatcher, shape)
    try:
        yield dispatcher
    finally:
        dispatcher.close()


@dataclass
class Received:
    """What the sequences are given, and a way to wait for so many tokens of all together."""

    tokens: dict[int, list[CommittedToken]] = field(default_factory=dict)
    num_over: int = 0
    errors: list[PotluckError] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def add(
        self, dispatcher: Dispatcher, request: SequenceRequest, continuation: Continuation
    ) -> None:
        number = len(self.tokens)
        self.tokens[number] = []

        def deliver(update: Update) -> None:
            with self.changed:
                if isinstance(update, PotluckError):
                    self.errors.append(update)
                else:
                    self.tokens[number].append(update.tokens[0])
                    self.num_over += update.tokens[0].finish_reason is not None
                self.changed.notify()

        dispatcher.add(request, deliver, continuation=continuation)

    def wait(self, num_tokens: int | None = None) -> None:
        """For that many tokens, or the end of all sequences."""
        with self.changed:
            assert self.changed.wait_for(
                lambda: (
                    self.errors
                    or self.num_over == len(self.tokens)
                    or (num_tokens is not None and self.num_tokens >= num_tokens)
                ),
                timeout=60,
            )
        assert self.errors == []

    def has(self, num_tokens: int, num_untold: int) -> bool:
        return self.num_tokens + num_untold >= num_tokens

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.tokens.values()))

    @property
    def plain(self) -> list[list[Plain]]:
        return [[plain(token) for token in tokens] for tokens in self.tokens.values()]


def plain(token: CommittedToken) -> Plain:
    top = tuple((other.token, other.logprob) for other in token.top)
    return token.position, token.token, token.logprob, top, token.vector


@cache
def undisturbed() -> list[list[Plain]]:
    with opened(SHAPES[0]) as dispatcher:
        received = Received()
        for request in REQUESTS:
            received.add(dispatcher, request, Continuation())
        received.wait()
        return received.plain


@pytest.mark.parametrize("number", [4, 5])
def test_a_grammar_is_matched_as_far_as_the_text_goes(number: int) -> None:
    tokens = [token for _, token, *_ in undisturbed()[number]]
    assert tokens[-1] == END
    document = json.loads("".join(PIECES[token] for token in tokens[:-1]))
    assert list(document) == ["s", "n", "b"]
    assert len(document["s"]) <= 9
    assert -99 <= document["n"] <= 999


@pytest.mark.parametrize("first", range(len(SHAPES)))
@pytest.mark.parametrize("cuts", [(1, 60, 100), (20, 130, 200), (160, 170, 180, 190, 215)])
def test_sequences_go_on_over_other_stages_with_equal_results(
    first: int, cuts: Sequence[int]
) -> None:
    num_expected = sum(map(len, undisturbed()))
    dispatcher = Dispatcher(SHAPES[first].limits)
    received = Received()
    for request in REQUESTS:
        received.add(dispatcher, request, Continuation())
    for number, cut in enumerate(cuts, first):
        attach(dispatcher, SHAPES[number % len(SHAPES)], partial(received.has, cut))
        received.wait(cut)
        dispatcher.detach()
        assert received.num_tokens < num_expected, "too late to be a test"
    last = SHAPES[(first + len(cuts)) % len(SHAPES)]
    attach(dispatcher, last)
    received.wait()
    assert dispatcher.load.num_free_blocks == last.num_blocks
    dispatcher.close()
    assert received.plain == undisturbed()


def test_stages_that_are_kept_compute_as_new_ones_do() -> None:
    """Their caches are full of what earlier sequences have left."""
    shape = SHAPES[1]
    pipeline = Pipeline.make(
        small_config(NUM_LAYERS),
        TensorFormat.Q4_K,
        num_stages=shape.num_stages,
        num_blocks=shape.num_blocks,
    )
    engines = [KeptEngine(engine) for engine in pipeline.engines]
    dispatcher = Dispatcher(shape.limits)
    received = Received()
    for request in REQUESTS:
        received.add(dispatcher, request, Continuation())
    for cut in (*range(5, 250, 35), 1000):
        dispatcher.attach(
            lambda on_outcome, cut=cut: LosingPipeline(  # type: ignore[misc]
                engines, on_outcome, partial(received.has, cut)
            ),
            shape.limits,
        )
        received.wait(cut)
        dispatcher.detach()
    assert received.plain == undisturbed()
    assert dispatcher.num_attachments == 8


@pytest.mark.parametrize("number", [0, 1, 2, 4, 5])
def test_an_answer_continues_from_each_of_its_tokens(number: int) -> None:
    request, expected = REQUESTS[number], undisturbed()[number]
    with opened(Shape(2, 2, 48, 40)) as dispatcher:
        received = Received()
        for cut in range(len(expected)):
            before = expected[:cut]
            num_scored = min(cut, request.num_scores)
            continuation = Continuation(
                output_tokens=tuple(token for _, token, *_ in before[num_scored:]),
                num_scored=num_scored,
            )
            received.add(dispatcher, request, continuation)
        received.wait()
    for cut, tokens in enumerate(received.plain):
        assert tokens == expected[cut:], cut


def generate(dispatcher: Dispatcher, stop: Sequence[str]) -> Generation:
    # Characters of several tokens, so that text is held back where stages are lost.
    characters = "".join(chr(0x20AC + number) for number in range(67)).encode()
    tokenizer = ByteTokenizer(pieces=tuple(bytes([each]) for each in characters[:VOCAB_SIZE]))
    detokenizer = StreamingDetokenizer(tokenizer, stop_strings=stop, starts_text=False)
    return Generation(dispatcher, REQUESTS[0], detokenizer, started=0.0)


def words(pieces: Sequence[Piece]) -> list[tuple[str, int, float | None]]:
    return [(piece.text, piece.token, piece.logprob) for piece in pieces]


def test_a_text_is_the_same_piece_by_piece() -> None:
    with opened(SHAPES[0]) as dispatcher:
        expected = generate(dispatcher, ["no such text"]).result()
    assert CONTEXT_TOKENS > len(expected.pieces) == 40
    with opened(SHAPES[1]) as dispatcher:
        generation = generate(dispatcher, ["no such text"])
        pieces: list[Piece] = []
        for piece in generation:
            pieces.append(piece)
            if len(pieces) in (1, 7, 8, 30):
                dispatcher.detach()
                attach(dispatcher, SHAPES[len(pieces) % len(SHAPES)])
        result = generation.result()
    assert words(pieces) == words(expected.pieces)
    assert result.text == expected.text
    assert result.finish_reason is expected.finish_reason
