"""No step that a scheduler can form is larger than its deployment's edges allow."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from potluck.cluster.wire.steps import (
    RestoreRequest,
    StepEncoder,
    decode_failure,
    encode_failure,
    encode_restore_request,
    encode_sampled,
)
from potluck.errors import EngineError, ParameterError
from potluck.scheduling.blocks import blocks_for
from potluck.scheduling.frame_limits import (
    MAX_MOVED_BLOCKS,
    MAX_SAVED_STATES,
    MAX_WAITING_SEQUENCES,
    edge_limits,
    result_bytes,
)
from potluck.types.ranges import MAX_TOP_LOGPROBS
from potluck.types.sampling import MAX_LOGIT_BIAS_TOKENS, validate_sampling
from potluck.types.step import (
    BlockCopy,
    HashedBlock,
    HashedState,
    SampledToken,
    SamplingParams,
    SequenceId,
    SequenceOpening,
    SequenceSlice,
    StateCopy,
    Step,
    StepId,
    TokenLogprob,
)

LARGE = 2**63 - 1
TOKEN = 2**32 + 1  # nine bytes, as no token of a real vocabulary takes
SAMPLING = SamplingParams(
    temperature=0.3,
    top_k=LARGE,
    top_p=0.9,
    min_p=0.1,
    repetition_penalty=1.1,
    frequency_penalty=0.1,
    presence_penalty=0.1,
    logit_bias=((TOKEN, -1.1),) * MAX_LOGIT_BIAS_TOKENS,
    seed=2**64 - 1,
    logprobs=True,
    top_logprobs=MAX_TOP_LOGPROBS,
)


@pytest.mark.parametrize("num_states", [0, 1024])
@pytest.mark.parametrize("context", [2, 64, 512, 4096])
def test_the_largest_step_and_its_result_fit(context: int, num_states: int) -> None:
    num_tokens = min(512, context)
    num_sequences = min(64, num_tokens)
    num_blocks = blocks_for(4 * context)
    limits = edge_limits(
        hidden_size=64,
        context_tokens=context,
        max_step_tokens=num_tokens,
        max_step_sequences=num_sequences,
        num_blocks=num_blocks,
        num_states=num_states,
    )
    slices = [
        SequenceSlice(
            sequence_id=SequenceId(LARGE),
            tokens=(TOKEN,) * (num_tokens // num_sequences),
            start_position=LARGE,
            block_table=(LARGE,) * -(-num_blocks // num_sequences),
            sample=False,
            score_from=LARGE,
            next_token=TOKEN,
            state=LARGE if num_states else None,
        )
    ] * num_sequences
    opened = [
        SequenceOpening(
            sequence_id=SequenceId(LARGE), sampling=SAMPLING, prompt_tokens=(TOKEN,) * context
        )
    ] * num_sequences
    closed = (SequenceId(LARGE),) * (num_blocks + MAX_WAITING_SEQUENCES)
    saved = HashedBlock(block=LARGE, hash=bytes(32), parent=bytes(32))
    step = Step(
        step_id=StepId(LARGE),
        slices=tuple(slices),
        opened=tuple(opened),
        closed=closed,
        copies=(BlockCopy(source=LARGE, target=LARGE),) * num_sequences,
        saves=(saved,) * max(MAX_MOVED_BLOCKS, num_tokens // 16),
        state_saves=(HashedState(state=LARGE, hash=bytes(32)),) * MAX_SAVED_STATES,
        state_copies=(StateCopy(source=LARGE, target=LARGE),) * num_states,
        cancels=(StepId(LARGE),) * 256,
    )
    verifying = replace(slices[0], sample=True, num_drafts=LARGE, score_from=None)
    drafted = replace(step, slices=(verifying,) * num_sequences)
    assert len(StepEncoder().encode(drafted)) <= limits.max_header_bytes
    restores = RestoreRequest((saved,) * MAX_MOVED_BLOCKS, LARGE, (LARGE,) * MAX_MOVED_BLOCKS)
    assert len(encode_restore_request(restores)) <= limits.max_header_bytes
    assert len(StepEncoder().encode(step)) <= limits.max_header_bytes
    sample = SampledToken(
        sequence_id=SequenceId(LARGE),
        position=LARGE,
        token=TOKEN,
        logprob=-1.1,
        top=(TokenLogprob(token=TOKEN, logprob=-1.1),) * MAX_TOP_LOGPROBS,
    )
    assert len(encode_sampled((sample,) * num_tokens)) <= limits.max_header_bytes
    assert len(encode_sampled((sample,) * num_tokens)) <= result_bytes(num_tokens, 0, 64)
    vectors = (msgspec.structs.replace(sample, vector=bytes(4 * 64)),) * num_sequences
    results = encode_sampled((*vectors, *(sample,) * (num_tokens - num_sequences)))
    assert len(results) <= result_bytes(num_tokens, num_sequences, 64) <= limits.max_header_bytes
    assert limits.max_payload_bytes == 4 * 64 * num_tokens


def test_a_failure_fits_however_long_its_words_are() -> None:
    limits = edge_limits(
        hidden_size=1, context_tokens=2, max_step_tokens=1, max_step_sequences=1, num_blocks=1
    )
    header = encode_failure(EngineError("𝄞" * 100_000, hint="𝄞" * 100_000))
    assert len(header) <= limits.max_header_bytes
    assert decode_failure(header).message == "𝄞" * 500


def test_more_biases_than_a_frame_has_room_for_are_refused() -> None:
    bias = tuple((token, 1.0) for token in range(MAX_LOGIT_BIAS_TOKENS + 1))
    with pytest.raises(ParameterError, match="at most 1024"):
        validate_sampling(SamplingParams(logit_bias=bias), 10_000)


@pytest.mark.parametrize(("context", "cache"), [(4096, 2**40), (2**32, 2**32)])
def test_a_cache_or_context_that_no_frame_can_list_is_refused(context: int, cache: int) -> None:
    with pytest.raises(ParameterError, match="is too large") as caught:
        edge_limits(
            hidden_size=64,
            context_tokens=context,
            max_step_tokens=512,
            max_step_sequences=64,
            num_blocks=blocks_for(cache),
        )
    assert str(cache) in caught.value.message
