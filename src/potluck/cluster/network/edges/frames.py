"""The layout of a frame: a preamble of 80 bytes, the header of a step, the bytes of a tensor.

All integers are little-endian::

    offset  bytes
         0      4  magic "PLCK"
         4      2  wire version
         6     40  deployment id, ASCII, padded with zero bytes
        46      8  epoch: number
        54      8  epoch: coordinator (the 16 digits of its node id)
        62      2  kind
        64      8  step id
        72      4  bytes of the header (msgpack)
        76      4  bytes of the payload (float32, little-endian)

The fields that identify the edge (all those before the kind) come first, so that one comparison
checks them. This module defines the layout and does no I/O.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass, replace

import msgspec

from potluck.scheduling.frame_limits import EdgeLimits
from potluck.types.cluster import WIRE_VERSION, DeploymentId, Epoch, NodeId
from potluck.types.step import StepId

_SCOPE = struct.Struct("<4sH40sQ8s")
_REST = struct.Struct("<HQII")
_SLICE = struct.Struct("<HQIII")
_MAGIC = b"PLCK"

SCOPE_BYTES = _SCOPE.size
PREAMBLE_BYTES = _SCOPE.size + _REST.size
SLICE_BYTES = _SCOPE.size + _SLICE.size
"""The size of a slice's frame before its payload: the header is the slice's number, in four bytes.
No other header that a member may send instead is shorter."""

NUMBER_BYTES = SLICE_BYTES - PREAMBLE_BYTES
MAX_DEPLOYMENT_BYTES = 40


class FrameKind(enum.IntEnum):
    """The content of a frame. ``PROBE`` and ``TURN`` measure a link (``links.exchange``).

    ``RESTORE`` is a step that only restores cache blocks. ``SKIPPED`` replaces a step that was
    cancelled before a stage had computed it, and its result. ``SLICE`` is part of what the members
    of a group exchange in a step. ``ABANDON`` replaces a member's next slice and means that it
    cannot compute the step.
    """

    HELLO = 1
    STEP = 2
    RESULT = 3
    FAILURE = 4
    PROBE = 5
    TURN = 6
    RESTORE = 7
    SKIPPED = 8
    SLICE = 9
    ABANDON = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The purpose of an edge, as repeated in each of its frames."""

    deployment: DeploymentId
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Preamble:
    """The first 80 bytes of a frame."""

    scope: Scope
    kind: FrameKind
    step_id: StepId
    header_bytes: int
    payload_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A received frame. ``header`` and ``payload`` are valid until the next one is received."""

    kind: FrameKind
    step_id: StepId
    header: memoryview
    payload: memoryview

    def copied(self) -> Frame:
        """Return a copy that stays valid; its payload is aligned to 16 bytes, too."""
        return replace(
            self,
            header=memoryview(bytearray(self.header)),
            payload=memoryview(bytearray(self.payload)),
        )


def encode_scope(scope: Scope) -> bytes:
    """Return the first ``SCOPE_BYTES`` of each frame of an edge.

    Raises ``ValueError`` for a deployment id that is empty, not ASCII or over 40 bytes, and for an
    epoch that is out of range.
    """
    deployment = scope.deployment.encode("ascii")
    if not 0 < len(deployment) <= MAX_DEPLOYMENT_BYTES or b"\0" in deployment:
        raise ValueError(f"a deployment id must have 1 to {MAX_DEPLOYMENT_BYTES} ASCII characters")
    coordinator = bytes.fromhex(scope.epoch.coordinator)
    if len(coordinator) != 8 or not 0 <= scope.epoch.number < 2**64:
        raise ValueError(f"the epoch does not fit in a frame: {scope.epoch}")
    return _SCOPE.pack(_MAGIC, WIRE_VERSION, deployment, scope.epoch.number, coordinator)


def encode_preamble_into(
    buffer: bytearray | memoryview,
    scope: bytes,
    kind: FrameKind,
    step_id: StepId,
    header_bytes: int,
    payload_bytes: int,
) -> None:
    """Write a preamble to the start of ``buffer``; ``scope`` is from ``encode_scope``."""
    buffer[:SCOPE_BYTES] = scope
    _REST.pack_into(buffer, SCOPE_BYTES, kind, step_id, header_bytes, payload_bytes)


def encode_slice_into(
    buffer: bytearray | memoryview, step_id: StepId, number: int, payload_bytes: int
) -> None:
    """Write the fields of a slice's frame between its scope and its payload into ``buffer``."""
    _SLICE.pack_into(
        buffer, SCOPE_BYTES, FrameKind.SLICE, step_id, NUMBER_BYTES, payload_bytes, number
    )


def decode_slice(start: bytearray | memoryview) -> tuple[int, StepId, int, int, int]:
    """Return kind, step id, sizes of header and payload, and, for a slice, its number.

    ``start`` are the first ``SLICE_BYTES`` of the frame; the scope is not checked.
    """
    kind, step_id, header_bytes, payload_bytes, number = _SLICE.unpack_from(start, SCOPE_BYTES)
    return kind, StepId(step_id), header_bytes, payload_bytes, number


def decode_rest(preamble: bytearray | memoryview) -> tuple[FrameKind, StepId, int, int]:
    """Return kind, step id, and sizes of header and payload. Raises ``ValueError`` for unknown
    kinds.
    """
    kind, step_id, header_bytes, payload_bytes = _REST.unpack_from(preamble, SCOPE_BYTES)
    if kind not in _KINDS:
        raise ValueError(f"it sent a frame of unknown kind {kind}")
    return _KINDS[kind], StepId(step_id), header_bytes, payload_bytes


def decode_preamble(preamble: bytearray | memoryview) -> Preamble:
    """Decode a whole preamble. Raises ``ValueError`` with what is wrong with it."""
    magic, version, deployment, number, coordinator = _SCOPE.unpack_from(preamble)
    if magic != _MAGIC:
        raise ValueError("it does not speak Potluck's protocol")
    if version != WIRE_VERSION:
        raise ValueError(f"it speaks wire version {version}, and this node {WIRE_VERSION}")
    name = deployment.rstrip(b"\0")
    if not name or b"\0" in name or not name.isascii():
        raise ValueError("it sent a malformed deployment id")
    kind, step_id, header_bytes, payload_bytes = decode_rest(preamble)
    epoch = Epoch(number=number, coordinator=NodeId(coordinator.hex()))
    return Preamble(
        scope=Scope(deployment=DeploymentId(name.decode("ascii")), epoch=epoch),
        kind=kind,
        step_id=step_id,
        header_bytes=header_bytes,
        payload_bytes=payload_bytes,
    )


def describe_difference(expected: Scope, found: Scope) -> str:
    """Describe why a frame with the scope ``found`` does not belong on an edge for ``expected``."""
    if found.deployment != expected.deployment:
        return f"deployment {found.deployment!r} is not {expected.deployment!r}"
    order = "lower" if found.epoch < expected.epoch else "higher"
    return f"epoch {_spell(found.epoch)} is {order} than {_spell(expected.epoch)}, this edge's"


def _spell(epoch: Epoch) -> str:
    return f"{epoch.number} of {epoch.coordinator}"


_KINDS = {int(kind): kind for kind in FrameKind}


HELLO_LIMITS = EdgeLimits(max_header_bytes=1024, max_payload_bytes=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Identifies an edge of a plan.

    ``index`` counts the edges of a plan: edge 0 leads from the coordinator to the first stage, edge
    i from stage i - 1 to stage i, and the last one from the last stage back to the coordinator.
    Stages that are members of a group are counted too, but edges connect only group leaders. Within
    the group whose leader is stage ``index``, an edge leads from member ``sender`` to member
    ``receiver``. ``is_reversed``: the receiver connects, because the sender cannot reach it.

    The sender's HELLO says which edge it wants to be; the receiver answers with its own HELLO, or
    with a FAILURE whose header has the reason. Without an answer a sender would learn that it was
    refused only when a later send fails: in TLS 1.3 a client's handshake is complete before its
    certificate has been checked.
    """

    scope: Scope
    index: int
    sender: int | None = None
    receiver: int | None = None
    is_reversed: bool = False

    @property
    def name(self) -> str:
        """Return the name of the edge for error messages."""
        if self.sender is None:
            return f"edge {self.index}" + (" from its receiver" if self.is_reversed else "")
        return f"edge {self.sender} to {self.receiver} of group {self.index}"


class _HelloHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    index: int
    sender: int | None = None
    receiver: int | None = None
    is_reversed: bool = False


class _RefusalHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: str


def encode_hello(hello: Hello) -> bytes:
    """Return the frame that a sender begins with, and that an agreeing receiver answers with."""
    header = msgspec.convert(hello, _HelloHeader, from_attributes=True)
    return _frame(hello.scope, FrameKind.HELLO, header)


def encode_refusal(scope: Scope, reason: str) -> bytes:
    """Return the frame with which a receiver refuses an edge."""
    return _frame(scope, FrameKind.FAILURE, _RefusalHeader(reason=reason[:500]))


def read_hello(scope: Scope, preamble: Preamble, header: bytes) -> Hello:
    """Return the hello in a frame. Raise ``ValueError`` with the reason if it is not one for
    ``scope``.
    """
    if preamble.kind is not FrameKind.HELLO:
        raise ValueError("it did not begin with a hello")
    if preamble.scope != scope:
        raise ValueError(describe_difference(scope, preamble.scope))
    try:
        read = msgspec.msgpack.decode(header, type=_HelloHeader)
    except ValueError as error:  # DecodeError, or text that is not UTF-8
        raise ValueError("it sent a malformed hello") from error
    return Hello(scope=scope, **msgspec.structs.asdict(read))


def check_hello(expected: Hello, preamble: Preamble, header: bytes) -> None:
    """Raise ``ValueError`` with the reason unless the frame is the expected hello."""
    found = read_hello(expected.scope, preamble, header)
    if found != expected:
        raise ValueError(f"expected {expected.name}, got {found.name}")


def check_answer(sent: Hello, preamble: Preamble, header: bytes) -> None:
    """Raise ``ValueError`` with the reason unless the frame accepts the hello that was sent."""
    if preamble.kind is not FrameKind.FAILURE:
        check_hello(sent, preamble, header)
        return
    try:
        reason = msgspec.msgpack.decode(header, type=_RefusalHeader).reason
    except ValueError as error:  # DecodeError, or text that is not UTF-8
        raise ValueError("it sent a malformed refusal") from error
    raise ValueError(f"refused: {reason}")


def _frame(scope: Scope, kind: FrameKind, header: msgspec.Struct) -> bytes:
    encoded = msgspec.msgpack.encode(header)
    preamble = bytearray(PREAMBLE_BYTES)
    encode_preamble_into(preamble, encode_scope(scope), kind, StepId(0), len(encoded), 0)
    return bytes(preamble) + encoded
