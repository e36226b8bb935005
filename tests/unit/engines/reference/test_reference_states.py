"""The reference engine on models with state and with latent attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines.stages import cut
from support.models.canonical_weights import canonical_weight, load_canonical_weights
from support.models.recurrent_configs import (
    LATENT,
    RECURRENCES,
    halves_config,
    hybrid_config,
    latent_config,
    parallel_config,
)
from support.reference.engine import ReferenceEngine

from potluck.errors import EngineError
from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.types.model import ModelConfig
from potluck.types.program import Shard, WeightSpec
from potluck.types.step import SequenceId, SequenceSlice, StateCopy, Step, StepId

CONTEXT = 64
TOLERANCE = 3e-5
TOKENS = tuple(np.random.default_rng(5).integers(0, 50, 40).tolist())
CONFIGS = {
    **{name: hybrid_config(recurrence) for name, recurrence in RECURRENCES.items()},
    "parallel": parallel_config(),
    "halves": halves_config(),
    "latent": latent_config(),
    "latent_full_queries": latent_config(query_rank=None),
}
STATEFUL = tuple(name for name in CONFIGS if not name.startswith("latent"))


class Engines:
    """The stages of a model with canonical weights; sequence ``n`` has slot ``n``."""

    def __init__(self, config: ModelConfig, boundaries: tuple[int, ...] = ()) -> None:
        self.engines = []
        for shard in cut(config.num_layers, boundaries):
            ropes = rope_tables(config, CONTEXT)
            program = build_program(config, shard, context_tokens=CONTEXT, ropes=ropes)
            engine = ReferenceEngine(program, num_blocks=16, num_states=4)
            load_canonical_weights(engine, program)
            self.engines.append(engine)

    def logits(
        self, *slices: SequenceSlice, copies: tuple[StateCopy, ...] = ()
    ) -> NDArray[np.float32]:
        step = Step(step_id=StepId(0), slices=slices, state_copies=copies)
        hidden = None
        for engine in self.engines[:-1]:
            hidden = engine.step(step, hidden).hidden
        return self.engines[-1].logits(step, hidden)


def part(sequence: int, start: int, end: int, *, slot: int | None = None) -> SequenceSlice:
    return SequenceSlice(
        sequence_id=SequenceId(sequence),
        tokens=TOKENS[start:end],
        start_position=start,
        block_table=tuple(range(4 * sequence, 4 * sequence + 4)),
        sample=True,
        state=sequence if slot is None else slot,
    )


def close_to(expected: NDArray[np.float32]) -> object:
    return pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_chunks_batches_and_cuts_give_what_the_whole_gives(name: str) -> None:
    config = CONFIGS[name]
    stages = Engines(config)
    whole = stages.logits(part(0, 0, 40))
    assert np.ptp(whole) > 1
    for end in range(1, 40):
        one = stages.logits(part(1, end - 1, end))
    one = stages.logits(part(1, 39, 40))
    assert one == close_to(whole)
    for start, end in ((0, 1), (1, 3), (3, 20), (20, 40)):
        # Beside another sequence, which has nothing to do with it.
        chunk = stages.logits(part(2, start, end), part(3, start, end - 1 if end > 3 else end))
    assert chunk[:1] == close_to(whole)
    for boundary in range(1, config.num_layers):
        assert Engines(config, (boundary,)).logits(part(0, 0, 40)) == close_to(whole)


@pytest.mark.parametrize("name", STATEFUL)
def test_a_sequence_begins_from_zeros_in_a_used_slot(name: str) -> None:
    stages = Engines(CONFIGS[name])
    first = stages.logits(part(0, 0, 20))
    assert np.array_equal(stages.logits(part(0, 0, 20)), first)


@pytest.mark.parametrize("name", STATEFUL)
def test_a_checkpoint_is_restored_exactly(name: str) -> None:
    stages = Engines(CONFIGS[name])
    stages.logits(part(0, 0, 20))
    expected = stages.logits(part(0, 20, 30), copies=(StateCopy(source=0, target=3),))
    state = [engine.read_states([3]) for engine in stages.engines]
    # The slot went on to 30 tokens; what was copied of it did not.
    again = stages.logits(part(0, 20, 30), copies=(StateCopy(source=3, target=0),))
    assert np.array_equal(again, expected)
    for engine, data in zip(stages.engines, state, strict=True):
        engine.write_states([2], data)
    assert np.array_equal(stages.logits(part(0, 20, 30, slot=2)), expected)


def test_the_state_matters() -> None:
    stages = Engines(CONFIGS["gated_delta"])
    stages.logits(part(0, 0, 20))
    right = stages.logits(part(0, 20, 30))
    wrong = stages.logits(part(0, 20, 30))  # the state is that after 30 tokens
    assert np.abs(right - wrong).max() > 0.01


@pytest.mark.parametrize(
    ("slices", "copies", "problem"),
    [
        ((replace(part(0, 0, 4), state=None),), (), "sequence 0 has no state slot"),
        ((part(0, 0, 4, slot=4),), (), "state slot 4 is not one of 4"),
        ((part(0, 0, 4), part(1, 0, 4, slot=0)), (), "two sequences write state slot 0"),
        ((part(0, 0, 4),), (StateCopy(source=0, target=4),), "state slot 4, of a copy"),
        ((part(0, 0, 4),), (StateCopy(source=1, target=1),), "state slot 1 is copied to itself"),
    ],
)
def test_bad_slots_are_refused(
    slices: tuple[SequenceSlice, ...], copies: tuple[StateCopy, ...], problem: str
) -> None:
    stages = Engines(CONFIGS["mamba"])
    with pytest.raises(EngineError, match=problem):
        stages.logits(*slices, copies=copies)
    with pytest.raises(EngineError, match="state slot 7 is not one of 4"):
        stages.engines[0].read_states([7])


def test_the_absorbed_form_is_attention_with_expanded_keys_and_values() -> None:
    """DeepSeek V2, section 2.1: keys and values of all heads, made of the latent row."""
    config = latent_config()
    ropes = rope_tables(config, CONTEXT)
    program = build_program(
        config, Shard.whole(config.num_layers), context_tokens=CONTEXT, ropes=ropes
    )
    specs = {spec.name: spec for spec in program.weights}

    def weight(name: str) -> NDArray[np.float32]:
        spec: WeightSpec = specs[name]
        return canonical_weight(spec)

    def norm(x: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        root = np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + config.norm_epsilon)
        return np.asarray(x / root * weight(name), np.float32)

    def turn(x: NDArray[np.float32]) -> NDArray[np.float32]:
        half = LATENT.rope_dim // 2
        cos, sin = ropes[0].cos[: len(x), None], ropes[0].sin[: len(x), None]
        first, second = x[..., :half], x[..., half:]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    hidden = weight("embed.weight")[list(TOKENS)]
    for layer in range(config.num_layers):
        stem = f"layers.{layer}"
        x = norm(hidden, f"{stem}.attn_norm.weight")
        low = norm(x @ weight(f"{stem}.attn.q_down.weight").T, f"{stem}.attn.q_down_norm.weight")
        q = (low @ weight(f"{stem}.attn.q.weight").T).reshape(len(x), LATENT.num_heads, -1)
        q_nope, q_rope = np.split(q, [LATENT.nope_dim], -1)
        latent = norm(x @ weight(f"{stem}.attn.latent.weight").T, f"{stem}.attn.latent_norm.weight")
        k_rope = turn((x @ weight(f"{stem}.attn.k_rope.weight").T)[:, None])
        k_nope = np.einsum("hln,tl->thn", weight(f"{stem}.attn.k_up.weight"), latent)
        values = np.einsum("hvl,tl->thv", weight(f"{stem}.attn.v_up.weight"), latent)
        scores = np.einsum("thn,shn->hts", q_nope, k_nope)
        scores += np.einsum("thr,sr->hts", turn(q_rope), k_rope[:, 0])
        scores *= LATENT.scale
        scores[:, np.triu_indices(len(x), 1)[0], np.triu_indices(len(x), 1)[1]] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        out = np.einsum("hts,shv->thv", shares, values).reshape(len(x), -1)
        hidden = hidden + out @ weight(f"{stem}.attn.o.weight").T
        x = norm(hidden, f"{stem}.mlp_norm.weight")
        gate = x @ weight(f"{stem}.mlp.gate.weight").T
        up = x @ weight(f"{stem}.mlp.up.weight").T
        hidden = hidden + (gate / (1 + np.exp(-gate)) * up) @ weight(f"{stem}.mlp.down.weight").T
    logits = norm(hidden, "norm.weight")[-1:] @ weight("head.weight").T
    assert Engines(config).logits(part(0, 0, 40)) == close_to(logits)
