"""How many state slots a model gets."""

from __future__ import annotations

import pytest
from support.models.configs import make_config
from support.models.recurrent_configs import (
    GATED_DELTA,
    LATENT,
    MAMBA,
    SHORT_CONV,
    halves_config,
    hybrid_config,
    latent_config,
    parallel_config,
)

from potluck.errors import ParameterError
from potluck.models.states import num_states_of, slot_bytes
from potluck.types.states import MAX_STATES

CONV_BYTES = 4 * 2 * make_config().hidden_size
DELTA_BYTES = 4 * (3 * (2 * 2 * 8 + 4 * 16) + 4 * 8 * 16)
MAMBA_BYTES = 4 * (3 * (4 * 8 + 2 * 2 * 16) + 4 * 16 * 8)


def test_a_slot_has_the_states_of_all_layers() -> None:
    assert (SHORT_CONV.kernel, GATED_DELTA.kernel, MAMBA.kernel) == (3, 4, 4)
    assert slot_bytes(hybrid_config(SHORT_CONV)) == 2 * CONV_BYTES
    assert slot_bytes(hybrid_config(GATED_DELTA, num_layers=5)) == 4 * DELTA_BYTES
    assert slot_bytes(parallel_config()) == parallel_config().num_layers * MAMBA_BYTES
    assert slot_bytes(halves_config()) == MAMBA_BYTES


def test_a_model_without_state_has_none() -> None:
    assert LATENT.latent_rank > 0
    for config in (make_config(), latent_config()):
        assert slot_bytes(config) == 0
        assert num_states_of(config, None) == 0
        assert num_states_of(config, None, default=12, least=4) == 0


def test_small_slots_are_as_many_as_a_step_has_sequences() -> None:
    assert num_states_of(hybrid_config(MAMBA), None) == 64


def test_what_is_asked_for_is_taken() -> None:
    config = hybrid_config(MAMBA)
    assert num_states_of(config, 5) == 5
    assert num_states_of(config, 5, default=7) == 5
    assert num_states_of(config, None, default=7) == 7
    assert num_states_of(config, None, default=7, least=11) == 11
    assert num_states_of(config, None, least=100) == 100


def test_states_of_a_model_without_any_are_refused() -> None:
    with pytest.raises(ParameterError, match="llama models have no state slots") as caught:
        num_states_of(make_config(), 8)
    assert caught.value.hint == "omit the number of state slots"
    assert caught.value.name == "states"


@pytest.mark.parametrize("num_states", [0, -1, MAX_STATES + 1])
def test_numbers_out_of_range_are_refused(num_states: int) -> None:
    with pytest.raises(ParameterError, match="but must be an integer from 1 to 1024"):
        num_states_of(hybrid_config(MAMBA), num_states)


def test_too_few_for_what_is_to_run_are_refused() -> None:
    with pytest.raises(
        ParameterError, match="8 state slots are too few: 22 are needed for 16 streams"
    ):
        num_states_of(hybrid_config(MAMBA), 8, least=22, why="16 streams")
    assert num_states_of(hybrid_config(MAMBA), 22, least=22) == 22
