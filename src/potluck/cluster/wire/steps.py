"""Steps and their results as frames carry them.

A step's header is a msgpack array of four parts; each stage decodes those that it needs and
forwards the others unread. ``common`` is for all stages: positions, and the changes of block tables
since the sequence's last step on the same edge. Tokens are for the first stage and are not
forwarded; known tokens that follow scored ones are for the last, and so are openings. The payload
is the hidden state, float32 little-endian ``[num_tokens, hidden_size]``.

Both ends of an edge therefore remember tables. ``StepEncoder`` is the coordinator's and decides
what is remembered; every stage has a ``StepDecoder``. Both start empty when an edge opens.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Annotated

import msgspec

from potluck.errors import EngineError, PotluckError
from potluck.scheduling.frame_limits import MAX_FAILURE_CHARACTERS, MAX_TABLES
from potluck.types.step import (
    BlockCopy,
    HashedBlock,
    HashedState,
    Pooling,
    SampledToken,
    SequenceId,
    SequenceOpening,
    SequenceSlice,
    StateCopy,
    Step,
    StepId,
    num_common,
)


class _Part(msgspec.Struct, frozen=True, array_like=True):
    """A ``SequenceSlice`` without its tokens.

    Its table is the first ``num_kept`` blocks of the previous one, followed by ``blocks``.
    """

    sequence_id: SequenceId
    start_position: int
    num_tokens: int
    num_kept: int
    blocks: tuple[int, ...]
    sample: bool
    score_from: int | None = None
    pooling: Pooling | None = None
    ends_pooling: bool = False
    state: int | None = None
    num_drafts: int = 0


class _Common(msgspec.Struct, frozen=True, array_like=True):
    """The fields that every stage reads. ``forgotten`` tables are no longer remembered."""

    parts: tuple[_Part, ...]
    closed: tuple[SequenceId, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    forgotten: tuple[SequenceId, ...] = ()
    saves: tuple[tuple[int, bytes, bytes], ...] = ()
    state_copies: tuple[tuple[int, int], ...] = ()
    state_saves: tuple[tuple[int, bytes], ...] = ()
    cancels: tuple[StepId, ...] = ()


class _Header(msgspec.Struct, frozen=True, array_like=True):
    """``tokens`` and ``known`` have an item for each part, or none at all.

    ``known`` are the tokens that follow the scored ones of a part, the last one of a part that
    gives a vector, or the drafts.
    """

    common: msgspec.Raw
    tokens: msgspec.Raw
    known: msgspec.Raw
    opened: msgspec.Raw


class _Failure(msgspec.Struct, frozen=True):
    message: str
    hint: str


class _FailedStep(msgspec.Struct, frozen=True, array_like=True):
    """Replaces a result, with what the stages after the failed one have to know."""

    failure: _Failure
    common: msgspec.Raw = msgspec.Raw(b"\xc0")  # nil: nothing


class RestoreRequest(msgspec.Struct, frozen=True, array_like=True):
    """The header of a step with ``restores``: a stage forwards what it has restored of it.

    ``blocks`` are those, from the first on. The slot ``state`` gets the state after as many of them
    as one of ``ends`` says: the numbers for which all stages so far may have stored it.
    """

    blocks: tuple[HashedBlock, ...]
    state: int | None = None
    ends: tuple[Annotated[int, msgspec.Meta(ge=1)], ...] = ()

    @classmethod
    def of(cls, step: Step) -> RestoreRequest:
        """Return what is sent to the first stage."""
        if step.restored_state is None:
            return cls(step.restores)
        return cls(step.restores, step.restored_state, tuple(range(1, len(step.restores) + 1)))


class RestoreResult(msgspec.Struct, frozen=True, array_like=True):
    """The header of such a step's result.

    All stages have restored ``num_blocks``, and the state after the first ``state_end`` of them,
    unless that is 0.
    """

    num_blocks: Annotated[int, msgspec.Meta(ge=0)]
    state_end: Annotated[int, msgspec.Meta(ge=0)] = 0


encode_restore_request = msgspec.msgpack.Encoder().encode
decode_restore_request = msgspec.msgpack.Decoder(RestoreRequest).decode
encode_restore_result = msgspec.msgpack.Encoder().encode
decode_restore_result = msgspec.msgpack.Decoder(RestoreResult).decode


class _Result(msgspec.Struct, frozen=True, array_like=True):
    sampled: tuple[SampledToken, ...]


_Tokens = tuple[tuple[int, ...], ...]

_encode = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(_Header).decode
_decode_common = msgspec.msgpack.Decoder(_Common).decode
_decode_failed_common = msgspec.msgpack.Decoder(_Common | None).decode
_decode_tokens = msgspec.msgpack.Decoder(_Tokens).decode
_decode_opened = msgspec.msgpack.Decoder(tuple[SequenceOpening, ...]).decode
_decode_result = msgspec.msgpack.Decoder(_Result).decode
_decode_failed = msgspec.msgpack.Decoder(_FailedStep).decode

_NOTHING = msgspec.Raw(_encode(()))


class StepEncoder:
    """Encodes the headers of the steps that go to a first stage, in order."""

    def __init__(self) -> None:
        self._tables: OrderedDict[SequenceId, tuple[int, ...]] = OrderedDict()

    def encode(self, step: Step) -> bytes:
        """Return the header of the next step."""
        slices = step.slices
        parts = tuple(map(self._part, slices))
        for sequence_id in step.closed:
            self._tables.pop(sequence_id, None)
        common = _Common(
            parts,
            step.closed,
            tuple((copy.source, copy.target) for copy in step.copies),
            self._forget_oldest(),
            tuple((each.block, each.hash, each.parent) for each in step.saves),
            tuple((copy.source, copy.target) for copy in step.state_copies),
            tuple((each.state, each.hash) for each in step.state_saves),
            step.cancels,
        )
        known: _Tokens = ()
        if any(map(_has_known, slices)):
            known = tuple(map(_known, slices))
        header = _Header(
            msgspec.Raw(_encode(common)),
            msgspec.Raw(_encode(tuple(part.tokens for part in slices))),
            msgspec.Raw(_encode(known)) if known else _NOTHING,
            msgspec.Raw(_encode(tuple(map(_needed, step.opened)))) if step.opened else _NOTHING,
        )
        return _encode(header)

    def _part(self, part: SequenceSlice) -> _Part:
        sequence_id, table = part.sequence_id, part.block_table
        before = self._tables.get(sequence_id, ())
        num_kept = len(before)
        if table[:num_kept] != before:
            num_kept = num_common(before, table)
        self._tables[sequence_id] = table
        self._tables.move_to_end(sequence_id)
        return _Part(
            sequence_id,
            part.start_position,
            len(part.tokens),
            num_kept,
            table[num_kept:],
            part.sample,
            part.score_from,
            part.pooling,
            part.ends_pooling,
            part.state,
            part.num_drafts,
        )

    def _forget_oldest(self) -> tuple[SequenceId, ...]:
        """Limit what the ends remember; tables of the current step are the newest."""
        num_over = len(self._tables) - MAX_TABLES
        if num_over <= 0:
            return ()
        return tuple(self._tables.popitem(last=False)[0] for _ in range(num_over))


class StepDecoder:
    """Decodes the headers that arrive at a stage, in order, and encodes those that it forwards.

    The steps have what the stage needs: one that ``is_first`` has their tokens, for the others
    those are 0 where they are not scored; one that ``is_last`` has their openings.
    """

    def __init__(self, *, is_first: bool, is_last: bool) -> None:
        self._is_first = is_first
        self._is_last = is_last
        self._tables: dict[SequenceId, tuple[int, ...]] = {}

    def decode(self, step_id: StepId, header: bytes | memoryview) -> Step:
        """Return the next step. Raise ``ValueError`` if it is invalid."""
        read = _decode_header(header)
        common = _decode_common(read.common)
        tables = self._take(common)
        known = _decode_tokens(read.known)
        if self._is_first:
            tokens = _decode_tokens(read.tokens)
        else:
            tokens = tuple((0,) * part.num_tokens for part in common.parts)
        if len(tokens) != len(common.parts) or len(known) not in (0, len(common.parts)):
            raise ValueError("a step has tokens for other sequences than it computes")
        return Step(
            step_id=step_id,
            slices=tuple(
                _slice(part, table, its_tokens, known[index] if known else ())
                for index, (part, table, its_tokens) in enumerate(
                    zip(common.parts, tables, tokens, strict=True)
                )
            ),
            opened=_decode_opened(read.opened) if self._is_last else (),
            closed=common.closed,
            copies=tuple(BlockCopy(source=each[0], target=each[1]) for each in common.copies),
            saves=tuple(
                HashedBlock(block=block, hash=digest, parent=parent)
                for block, digest, parent in common.saves
            ),
            state_copies=tuple(
                StateCopy(source=each[0], target=each[1]) for each in common.state_copies
            ),
            state_saves=tuple(
                HashedState(state=state, hash=digest) for state, digest in common.state_saves
            ),
            cancels=common.cancels,
        )

    def forwarded(self, header: bytes | memoryview) -> bytes:
        """Return the header of the same step for the next stage."""
        read = _decode_header(header)
        return _encode(_Header(read.common, _NOTHING, read.known, read.opened))

    def failed(self, header: bytes | memoryview, error: PotluckError) -> bytes:
        """Return the header of the frame that replaces a step's result."""
        return encode_failure(error, _decode_header(header).common)

    def skipped(self, header: bytes | memoryview) -> bytes:
        """Return the header of the frame that replaces a step that is not computed."""
        return bytes(_decode_header(header).common)

    def skip_failed(self, header: bytes | memoryview) -> tuple[StepId, ...]:
        """Process a step that failed at an earlier stage; ``header`` is that of its failure.

        Return the steps that it cancels.
        """
        common = _decode_failed_common(_decode_failed(header).common)
        if common is None:
            return ()
        self._take(common)
        cancels: tuple[StepId, ...] = common.cancels
        return cancels

    def skip(self, header: bytes | memoryview) -> tuple[StepId, ...]:
        """Process a step that was skipped at an earlier stage; ``header`` is that of its frame.

        Return the steps that it cancels. Raise ``ValueError`` if it must not be skipped.
        """
        common = _decode_common(header)
        if not _can_be_skipped(common):
            raise ValueError("a skipped step does more than verify drafts")
        self._take(common)
        return common.cancels

    def _take(self, common: _Common) -> list[tuple[int, ...]]:
        """Return the parts' tables, as they are now."""
        tables = self._tables
        found: list[tuple[int, ...]] = []
        for part in common.parts:
            table = tables.get(part.sequence_id, ())
            if part.num_kept > len(table):
                raise ValueError(f"the table of sequence {part.sequence_id} is unknown")
            if part.blocks or part.num_kept < len(table):
                table = table[: part.num_kept] + part.blocks
            tables[part.sequence_id] = table
            found.append(table)
        for sequence_id in (*common.closed, *common.forgotten):
            tables.pop(sequence_id, None)
        if len(tables) > MAX_TABLES:
            raise ValueError(f"more than {MAX_TABLES} tables would have to be remembered")
        return found


def encode_sampled(sampled: tuple[SampledToken, ...]) -> bytes:
    """Return the header of a result."""
    return _encode(_Result(sampled))


def decode_sampled(header: bytes | memoryview) -> tuple[SampledToken, ...]:
    """Return the content of a result's header. Raise ``ValueError`` if it is invalid."""
    return _decode_result(header).sampled


def encode_failure(error: PotluckError, common: msgspec.Raw | None = None) -> bytes:
    """Return the header of a frame that replaces a result."""
    most = MAX_FAILURE_CHARACTERS
    failure = _Failure(message=error.message[:most], hint=error.hint[:most])
    return _encode(_FailedStep(failure) if common is None else _FailedStep(failure, common))


def decode_failure(header: bytes | memoryview) -> EngineError:
    """Return the error that occurred in a stage."""
    failure = _decode_failed(header).failure
    return EngineError(failure.message, hint=failure.hint)


def _slice(
    part: _Part, table: tuple[int, ...], tokens: tuple[int, ...], known: tuple[int, ...]
) -> SequenceSlice:
    next_token = None
    if part.num_drafts:
        _check_drafts(part)
        if len(known) != part.num_drafts:
            raise ValueError(f"sequence {part.sequence_id} lacks drafts")
        tokens = tokens[: -part.num_drafts] + known
    elif part.score_from is not None:
        end = part.num_tokens - part.score_from - 1
        if len(known) != end + (not part.sample):
            raise ValueError(f"sequence {part.sequence_id} lacks scored tokens")
        tokens = tokens[: part.score_from + 1] + known[:end]
        next_token = None if part.sample else known[-1]
    elif part.ends_pooling:
        if len(known) != 1:
            raise ValueError(f"sequence {part.sequence_id} lacks the last pooled token")
        tokens = tokens[:-1] + known
    return SequenceSlice(
        sequence_id=part.sequence_id,
        tokens=tokens,
        start_position=part.start_position,
        block_table=table,
        sample=part.sample,
        score_from=part.score_from,
        next_token=next_token,
        pooling=part.pooling,
        ends_pooling=part.ends_pooling,
        state=part.state,
        num_drafts=part.num_drafts,
    )


def _can_be_skipped(common: _Common) -> bool:
    """Return ``Step.can_be_skipped`` without its openings, which do not matter for it."""
    does_more = (
        common.closed or common.copies or common.saves or common.state_copies or common.state_saves
    )
    return (
        not does_more
        and bool(common.parts)
        and all(
            0 < part.num_drafts == part.num_tokens and part.state is None for part in common.parts
        )
    )


def _check_drafts(part: _Part) -> None:
    name, count = f"sequence {part.sequence_id}", part.num_drafts
    if not 0 < count <= part.num_tokens:
        raise ValueError(f"{count} of {part.num_tokens} tokens of {name} are drafts")
    if not part.sample or part.score_from is not None or part.pooling is not None:
        raise ValueError(f"{name} has drafts and is not only sampled")


def _has_known(part: SequenceSlice) -> bool:
    return part.num_drafts != 0 or part.score_from is not None or part.ends_pooling


def _known(part: SequenceSlice) -> tuple[int, ...]:
    """Return what later stages know of the tokens of ``part``."""
    if part.score_from is None:
        num_known = part.num_drafts or int(part.ends_pooling)
        return part.tokens[max(0, len(part.tokens) - num_known) :]
    following = part.tokens[part.score_from + 1 :]
    return following if part.next_token is None else (*following, part.next_token)


def _needed(opening: SequenceOpening) -> SequenceOpening:
    """Remove tokens on which nothing depends: only penalties and grammars use them."""
    sampling = opening.sampling
    if sampling.repetition_penalty != 1.0:
        return opening
    counts = sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0
    if counts or opening.grammar is not None:
        return replace(opening, prompt_tokens=())
    return replace(opening, prompt_tokens=(), output_tokens=())
