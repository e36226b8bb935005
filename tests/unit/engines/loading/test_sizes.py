from __future__ import annotations

import dataclasses

import pytest

from potluck.engines.loading import Room, combined, require_memory
from potluck.engines.loading.sizes import fitting_size_hint
from potluck.errors import InsufficientMemoryError, ParameterError
from potluck.types.choices import Quantization
from potluck.types.memory import MemoryLimit, MemoryPlan
from potluck.types.stage import StageSize

MIB = 2**20
SIZE = StageSize(context_tokens=4096, num_blocks=1024, max_step_tokens=512, num_threads=2)
_BYTES_OF = {
    Quantization.NONE: 600,
    Quantization.Q8_0: 320,
    Quantization.Q6_K: 250,
    Quantization.Q4_K: 170,
    Quantization.Q4_0: 170,
}


def plan_of(size: StageSize) -> MemoryPlan:
    """Weights by quantization, and a cache of a MiB per four blocks."""
    return MemoryPlan(
        weights=(("bf16", _BYTES_OF[size.quantization] * MIB),),
        cache_bytes=size.num_blocks * MIB // 4,
        rope_bytes=0,
        scratch_bytes=12 * MIB,
        staging_bytes=32 * MIB,
    )


def limit(mebibytes: int) -> Room:
    return Room(host=MemoryLimit(bytes=mebibytes * MIB, reason="memory available on this machine"))


def test_what_fits_exactly_is_allowed() -> None:
    require_memory(plan_of(SIZE), limit(900), SIZE, plan_of)
    with pytest.raises(InsufficientMemoryError):
        require_memory(plan_of(SIZE), limit(899), SIZE, plan_of)


def test_the_message_says_what_is_needed_for_what_and_what_would_fit() -> None:
    with pytest.raises(InsufficientMemoryError) as caught:
        require_memory(plan_of(SIZE), limit(800), SIZE, plan_of)
    assert caught.value.message == (
        "900 MiB of memory are needed (bf16 weights 600 MiB, cache 256 MiB, scratch 12 MiB, "
        "staging 32 MiB), but only 800 MiB may be used (memory available on this machine)"
    )
    assert caught.value.hint == "--context 2048 or --quant q8_0 would fit"
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (900 * MIB, 800 * MIB)


def test_a_device_and_its_machine_hold_a_part_each() -> None:
    def on_device(size: StageSize) -> MemoryPlan:
        return dataclasses.replace(plan_of(size), is_on_device=True, process_bytes=8 * MIB)

    def room(host: int, device: int) -> Room:
        own = MemoryLimit(bytes=device * MIB, reason="what is free there")
        return dataclasses.replace(limit(host), device=own)

    # Weights, cache and scratch there; staging and the process here.
    require_memory(on_device(SIZE), room(40, 868), SIZE, on_device)
    with pytest.raises(InsufficientMemoryError, match="40 MiB of memory are needed") as caught:
        require_memory(on_device(SIZE), room(39, 868), SIZE, on_device)
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (40 * MIB, 39 * MIB)
    with pytest.raises(InsufficientMemoryError) as caught:
        require_memory(on_device(SIZE), room(40, 867), SIZE, on_device)
    assert caught.value.message.startswith("868 MiB of device memory are needed (bf16")
    assert caught.value.message.endswith("but only 867 MiB may be used (what is free there)")
    assert caught.value.hint == "--context 2048 or --quant q8_0 would fit"


@pytest.mark.parametrize(
    ("mebibytes", "hint"),
    [
        (700, "--context 512 or --quant q8_0 would fit"),
        (600, "--quant q6_k would fit"),
        (420, "--quant q8_0 --context 512 would fit"),
        (200, ""),
    ],
)
def test_what_would_fit(mebibytes: int, hint: str) -> None:
    assert (
        fitting_size_hint(SIZE, lambda size: plan_of(size).total_bytes <= mebibytes * MIB) == hint
    )


@pytest.mark.parametrize(
    ("mebibytes", "hint"),
    [
        (1250, "--cache 32768 or --quant q4_k would fit"),
        (710, "--cache 4096 would fit"),
        (680, "--context 2048 --cache 2048 would fit"),
        (420, "--quant q8_0 --context 2048 --cache 2048 would fit"),
    ],
)
def test_a_cache_that_was_given_is_what_shrinks(mebibytes: int, hint: str) -> None:
    size = dataclasses.replace(SIZE, num_blocks=4096)  # 65,536 tokens
    assert (
        fitting_size_hint(size, lambda size: plan_of(size).total_bytes <= mebibytes * MIB) == hint
    )


STATES = 16


def with_states(size: StageSize) -> MemoryPlan:
    """A state slot of 10 MiB besides."""
    return dataclasses.replace(plan_of(size), state_bytes=size.num_states * 10 * MIB)


@pytest.mark.parametrize(
    ("mebibytes", "hint"),
    [
        (1000, "--context 2048 or --states 8 or --quant q8_0 would fit"),
        (830, "--context 256 or --quant q8_0 would fit"),
        (600, "--quant q8_0 --context 1024 would fit"),
        (300, "--quant q4_k --context 1024 --states 2 would fit"),
        (200, ""),
    ],
)
def test_fewer_states_are_proposed_too(mebibytes: int, hint: str) -> None:
    size = dataclasses.replace(SIZE, num_states=STATES)
    assert (
        fitting_size_hint(size, lambda size: with_states(size).total_bytes <= mebibytes * MIB)
        == hint
    )


def test_no_fewer_states_are_proposed_than_are_needed() -> None:
    size = dataclasses.replace(SIZE, num_states=STATES)

    def hint(mebibytes: int) -> str:
        limit_bytes = mebibytes * MIB
        return fitting_size_hint(
            size, lambda size: with_states(size).total_bytes <= limit_bytes, least_states=11
        )

    assert hint(1010) == "--context 2048 or --states 11 or --quant q8_0 would fit"
    assert hint(1009) == "--context 2048 or --quant q8_0 would fit"
    assert hint(340) == "--quant q4_k --context 256 --states 11 would fit"


def test_states_are_named_and_are_on_the_device() -> None:
    size = dataclasses.replace(SIZE, num_states=STATES)
    with pytest.raises(InsufficientMemoryError, match="cache 256 MiB, states 160 MiB, scratch"):
        require_memory(with_states(size), limit(1059), size, with_states)
    require_memory(with_states(size), limit(1060), size, with_states)
    on_device = dataclasses.replace(with_states(size), is_on_device=True)
    assert on_device.device_bytes == plan_of(size).total_bytes - 32 * MIB + 160 * MIB


def test_stages_of_one_process_load_one_after_the_other() -> None:
    one = plan_of(SIZE)
    other = dataclasses.replace(
        one, weights=(("q8_0", 5), ("bf16", 7)), rope_bytes=3, state_bytes=9
    )
    assert combined([one, other]) == MemoryPlan(
        weights=(("bf16", 600 * MIB + 7), ("q8_0", 5)),
        cache_bytes=512 * MIB,
        state_bytes=9,
        rope_bytes=3,
        scratch_bytes=24 * MIB,
        staging_bytes=32 * MIB,
    )


_ON_DISK = " (--mmap: given enough disk space)"


def mappable(size: StageSize) -> MemoryPlan:
    """As ``plan_of``, on a backend that can map weights."""
    memory = plan_of(size)
    if not size.is_mapped:
        return memory
    return dataclasses.replace(memory, weights=(), mapped=memory.weights)


@pytest.mark.parametrize(
    ("mebibytes", "hint"),
    [
        (
            800,
            f"--context 2048 or --quant q8_0 or --mmap would fit{_ON_DISK}",
        ),
        (600, f"--quant q6_k or --mmap would fit{_ON_DISK}"),
        (420, f"--mmap would fit{_ON_DISK}"),
        (299, "--quant q4_k --context 1024 would fit"),
        (200, f"--context 2048 --mmap would fit{_ON_DISK}"),
        (40, ""),
    ],
)
def test_mapped_weights_are_proposed_where_they_would_fit(mebibytes: int, hint: str) -> None:
    room = limit(mebibytes)
    assert fitting_size_hint(SIZE, lambda size: room.holds(mappable(size))) == hint


def test_mapped_weights_are_not_proposed_to_who_maps_them_or_cannot() -> None:
    is_mapped = dataclasses.replace(SIZE, is_mapped=True)
    assert fitting_size_hint(is_mapped, lambda size: limit(299).holds(mappable(size))) == (
        "--context 2048 would fit"
    )

    def unmappable(size: StageSize) -> MemoryPlan:
        if size.is_mapped:
            raise ParameterError("mmap", "weights cannot be mapped for this backend", hint="")
        return plan_of(size)

    with pytest.raises(InsufficientMemoryError) as caught:
        require_memory(unmappable(SIZE), limit(800), SIZE, unmappable)
    assert caught.value.hint == "--context 2048 or --quant q8_0 would fit"
