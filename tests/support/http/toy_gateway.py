"""A gateway in this process: the toy model behind a real scheduler and dispatcher.

The toy model's next token depends on the whole history and on the seed, so every text is known
beforehand (``expected_tokens``) and a mix-up of sequences shows.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

import msgspec
from support.placement.predictions import prediction
from support.scheduling.toy_pipeline import ToyPipeline, next_token
from support.scheduling.updates import start_of

from potluck.errors import ModelNotFoundError, PotluckError
from potluck.scheduling.dispatcher import Dispatcher
from potluck.scheduling.ledger import Update
from potluck.scheduling.limits import SchedulerLimits
from potluck.scheduling.pipeline import OnOutcome, StepOutcome
from potluck.types.cluster import WIRE_VERSION, NodeId
from potluck.types.deployment import DeploymentState
from potluck.types.documents.cluster import ClusterDocument, SilentNode, StageTimes, TokenSpeed
from potluck.types.drafting import DraftTotals
from potluck.types.gateway import EdgeMetrics, ModelMetrics, ModelStatus, ServedModel, StageMetrics
from potluck.types.model import EmbeddingConfig
from potluck.types.prefix_cache import PrefixTotals
from potluck.types.sequence import Cancel, CommittedToken, OnUpdate, SequenceRequest
from potluck.types.states import StateSlots
from potluck.types.step import Pooling, SampledToken, SamplingParams, SequenceId, Step, TokenLogprob
from potluck.types.text import ChatEnding, ChatMessage, ChatPrompt, Tool

VOCAB_SIZE = 1000
END_OF_TEXT = 999
NUM_BLOCKS = 512
CONTEXT_TOKENS = 1024
CREATED = 1_700_000_000
MODEL = "toy/model"


class ToyTokenizer:
    """Bytes, then words; token 999 ends a text and is empty."""

    vocab_size = VOCAB_SIZE
    eos_token_ids = (END_OF_TEXT,)
    closing_tokens: tuple[int, ...] = ()
    special_tokens = ("<end>",)
    strips_prefix_space = False

    def encode(
        self,
        text: str,
        *,
        add_bos: bool = True,
        parse_special: bool = False,
        literal: Sequence[int] = (),
        max_tokens: int | None = None,
    ) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        if token == END_OF_TEXT:
            return b""
        return bytes([token]) if token < 256 else f" w{token}".encode()

    def control_text(self, token: int) -> str:
        return "</s>" if token == END_OF_TEXT else ""

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, tokens)).decode(errors="replace")


def toy_chat(
    messages: Iterable[ChatMessage],
    *,
    ending: ChatEnding = ChatEnding.NEW_TURN,
    reasoning_effort: str | None = None,
    thinks: bool | None = None,
    tools: Iterable[Tool] = (),
    template_variables: Mapping[str, object] | None = None,
) -> ChatPrompt:
    """The toy model's chat template: ``role:content`` and a new line each, then ``assistant:``."""
    effort = "" if reasoning_effort is None else f"effort:{reasoning_effort}\n"
    text = effort + "".join(
        f"{message.name or message.role}:{message.content}\n" for message in messages
    )
    if ending is ChatEnding.CONTINUED:
        text = text[:-1]
    elif ending is ChatEnding.NEW_TURN:
        text += "assistant:"
    return ChatPrompt(tokens=list(text.encode()), turn="assistant:")


def expected_tokens(prompt: Sequence[int], seed: int, count: int) -> list[int]:
    """What the toy model writes after ``prompt``, at most ``count`` tokens."""
    history = list(prompt)
    for _ in range(count):
        history.append(_seeded(next_token(history), seed))
        if history[-1] == END_OF_TEXT:
            break
    return history[len(prompt) :]


def expected_text(prompt: str, seed: int, count: int) -> str:
    return ToyTokenizer().decode(expected_tokens(list(prompt.encode()), seed, count))


def toy_logprob(token: int) -> float:
    return -token / 100


@dataclass(slots=True, kw_only=True)
class LiveSequence:
    """A request that a gateway was given, and the tokens that it was answered with."""

    request: SequenceRequest
    committed: list[CommittedToken] = field(default_factory=list)


class ToyGateway:
    """One model, ``toy/model``. What it was asked to generate is in ``live``, and ``num_open`` of
    that have not ended.

    ``served``, if it is given, encodes texts in place of the toy's own tokenizer. With
    ``pause_after`` sequences wait after so many tokens until the event is set, as they do while a
    deployment is loaded again.
    """

    def __init__(self, *, step_seconds: float = 0.0) -> None:
        self.live: list[LiveSequence] = []
        self.num_open = 0
        self._sequence_ids: dict[int, SequenceId] = {}
        self.status = ModelStatus(
            model_id=MODEL,
            created=CREATED,
            context_tokens=CONTEXT_TOKENS,
            state=DeploymentState.READY,
            sampling_defaults={"temperature": 0.7, "top_k": 40, "min_p": 0.05},
            quantization="q4_1",
            family="toy",
            num_parameters=134_515_008,
        )
        self.sampling_defaults: Mapping[str, float | int] = {}
        self.served: ServedModel | None = None
        self.failure_after: tuple[int, PotluckError | RuntimeError] | None = None
        self.pause_after: tuple[int, threading.Event] | None = None
        limits = SchedulerLimits(
            num_blocks=NUM_BLOCKS,
            context_tokens=CONTEXT_TOKENS,
            max_step_tokens=256,
            max_step_sequences=32,
            max_steps_in_flight=1,
        )
        self.dispatcher = Dispatcher(limits)
        self.dispatcher.attach(lambda on_outcome: _ToyThread(on_outcome, step_seconds), limits)

    @property
    def num_used_blocks(self) -> int:
        return NUM_BLOCKS - self.dispatcher.load.num_free_blocks

    def models(self) -> Sequence[ModelStatus]:
        return (self.status,)

    async def served_model(self, model_id: str) -> ServedModel:
        if model_id != MODEL:
            raise ModelNotFoundError(f"there is no model {model_id}")
        if self.served is not None:
            return self.served
        return ServedModel(
            model_id=MODEL,
            tokenizer=ToyTokenizer(),
            encode_chat=toy_chat,
            vocab_size=VOCAB_SIZE,
            context_tokens=CONTEXT_TOKENS,
            sampling_defaults=self.sampling_defaults,
            vector_size=4,
            embedding=EmbeddingConfig(pooling=Pooling.LAST, is_normalized=True),
        )

    def start(self, model_id: str, request: SequenceRequest, on_update: OnUpdate) -> Cancel:
        sequence = LiveSequence(request=request)
        end = start_of(self.generate(sequence), on_update)

        def cancel() -> None:
            end()
            # At once, for tests that look at the blocks when they have the answer: the task ends
            # in a later turn of the loop.
            sequence_id = self._sequence_ids.pop(id(sequence), None)
            if sequence_id is not None:
                self.dispatcher.cancel(sequence_id)

        return cancel

    async def generate(self, sequence: LiveSequence) -> AsyncGenerator[CommittedToken, None]:
        self.live.append(sequence)
        loop = asyncio.get_running_loop()
        updates: asyncio.Queue[Update] = asyncio.Queue()

        def subscriber(update: Update) -> None:
            loop.call_soon_threadsafe(updates.put_nowait, update)

        sequence_id = self.dispatcher.add(sequence.request, subscriber)
        self._sequence_ids[id(sequence)] = sequence_id
        self.num_open += 1
        try:
            count = 0
            while True:
                if self.pause_after is not None and count == self.pause_after[0]:
                    while not self.pause_after[1].is_set():
                        await asyncio.sleep(0.005)
                if self.failure_after is not None and count == self.failure_after[0]:
                    raise self.failure_after[1]
                update = await updates.get()
                if isinstance(update, PotluckError):
                    raise update
                count += 1
                sequence.committed.append(update.tokens[0])
                yield update.tokens[0]
                if update.tokens[0].finish_reason is not None:
                    return
        finally:
            self.num_open -= 1
            self._sequence_ids.pop(id(sequence), None)
            self.dispatcher.cancel(sequence_id)

    async def refresh_cluster(self) -> None:
        """Nothing: what is shown is always of this moment."""

    async def refresh_metrics(self) -> None:
        """Nothing, too."""

    def cluster_state(self) -> ClusterDocument:
        node = NodeId("00000000000000aa")
        return ClusterDocument(
            node_id=node,
            wire_version=WIRE_VERSION,
            nodes=(SilentNode(node_id=node),),
            incompatible=(),
            links=(),
            deployments=(),
        )

    def metrics(self) -> Sequence[ModelMetrics]:
        node = NodeId("00000000000000aa")
        return (
            ModelMetrics(
                model_id=MODEL,
                num_waiting=0,
                num_running=3,
                num_blocks=NUM_BLOCKS,
                num_free_blocks=NUM_BLOCKS - 12,
                num_kept_blocks=9,
                prefix=PrefixTotals(
                    num_admissions=21,
                    num_hits=14,
                    num_saved_tokens=1234,
                    num_evictions=6,
                    num_restored_tokens=96,
                    num_checkpoints=8,
                    num_checkpoint_hits=5,
                    num_checkpoint_evictions=2,
                    num_uncovered_tokens=77,
                ),
                drafts=DraftTotals(
                    num_drafted=40,
                    num_accepted=30,
                    num_verifications=10,
                    num_samples=41,
                    num_cancelled=2,
                ),
                states=StateSlots(num_live=3, num_checkpoints=4, num_free=1, slot_bytes=1000),
                epoch=5,
                num_recoveries=4,
                recovery_seconds=2.5,
                num_moves=3,
                last_gain=0.25,
                num_spares=1,
                speed=TokenSpeed(
                    tokens_per_second=40.0, total_tokens_per_second=90.0, num_streams=5
                ),
                prediction=prediction(node),
                stages=(
                    StageMetrics(
                        stage=0,
                        node_id=node,
                        num_steps=7,
                        compute_seconds=1.5,
                        cpu_seconds=1.25,
                        memory_bytes=4096,
                        num_dropped_frames=2,
                        slowdown=1.25,
                        times=StageTimes(decode_seconds=0.02, prefill_seconds_per_token=0.001),
                        num_exchanges=13,
                        exchange_seconds=0.75,
                    ),
                ),
                edges=(
                    EdgeMetrics(
                        edge=0,
                        sender=node,
                        receiver=node,
                        num_frames=8,
                        num_bytes=900,
                        send_seconds=0.25,
                    ),
                ),
            ),
        )


class _ToyThread:
    """Runs the toy pipeline's steps on a thread, each in at least ``step_seconds``."""

    def __init__(self, on_outcome: OnOutcome, step_seconds: float) -> None:
        self._on_outcome = on_outcome
        self._step_seconds = step_seconds
        self._steps: SimpleQueue[Step | None] = SimpleQueue()
        self._toy = ToyPipeline()
        self._sampling: dict[SequenceId, SamplingParams] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="toy", daemon=True)
        self._thread.start()

    def submit(self, step: Step) -> None:
        self._steps.put(step)

    def close(self) -> None:
        self._closed.set()
        self._steps.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (step := self._steps.get()) is not None:
            self._closed.wait(self._step_seconds)
            for opening in step.opened:
                self._sampling[opening.sequence_id] = opening.sampling
            self._toy.submit(step)
            sampled = tuple(map(self._finish, self._toy.run_oldest()[1]))
            self._on_outcome(StepOutcome(step=step, sampled=sampled))

    def _finish(self, sample: SampledToken) -> SampledToken:
        if sample.vector is not None:
            return sample
        sampling = self._sampling[sample.sequence_id]
        is_scored = sample.logprob is not None
        token = sample.token if is_scored else _seeded(sample.token, sampling.seed)
        if not sampling.logprobs:
            return msgspec.structs.replace(sample, token=token)
        top = tuple(
            TokenLogprob(token=other, logprob=toy_logprob(other))
            for other in range(300, 300 + sampling.top_logprobs)
        )
        return msgspec.structs.replace(sample, token=token, logprob=toy_logprob(token), top=top)


def _seeded(token: int, seed: int) -> int:
    return (token + seed) % VOCAB_SIZE
