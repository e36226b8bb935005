from __future__ import annotations

import pytest

from potluck.cluster.network.edges.frames import (
    PREAMBLE_BYTES,
    FrameKind,
    Scope,
    decode_preamble,
    describe_difference,
    encode_preamble_into,
    encode_scope,
)
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.step import StepId

SCOPE = Scope(
    deployment=DeploymentId("demo"), epoch=Epoch(number=258, coordinator=NodeId("00112233445566ff"))
)
# By hand from the table in the module's docstring.
BYTES = bytes.fromhex(
    "504c434b"  # PLCK
    "0900"  # wire version 9
    + "64656d6f"
    + "00" * 36  # demo
    + "0201000000000000"  # 258
    "00112233445566ff"
    "0200"  # STEP
    "0300000000000000"  # step 3
    "04000000"  # 4 bytes of header
    "00100000"  # 4096 of payload
)


def _encoded() -> bytearray:
    buffer = bytearray(PREAMBLE_BYTES)
    encode_preamble_into(buffer, encode_scope(SCOPE), FrameKind.STEP, StepId(3), 4, 4096)
    return buffer


def test_layout() -> None:
    assert _encoded() == BYTES
    preamble = decode_preamble(bytearray(BYTES))
    assert preamble.scope == SCOPE
    assert preamble.kind is FrameKind.STEP
    assert preamble.step_id == 3
    assert (preamble.header_bytes, preamble.payload_bytes) == (4, 4096)


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (0, b"HTTP", "does not speak Potluck's protocol"),
        (4, b"\x0a\x00", "wire version 10, and this node 9"),
        (6, b"\x00" * 40, "malformed deployment"),
        (6, b"d\x00m", "malformed deployment"),
        (6, b"\xff", "malformed deployment"),
        (62, b"\x00\x00", "unknown kind 0"),
        (62, b"\x63\x00", "unknown kind 99"),
    ],
)
def test_what_is_wrong_is_said(offset: int, value: bytes, reason: str) -> None:
    data = bytearray(BYTES)
    data[offset : offset + len(value)] = value
    with pytest.raises(ValueError, match=reason):
        decode_preamble(data)


@pytest.mark.parametrize(
    "scope",
    [
        Scope(deployment=DeploymentId(""), epoch=SCOPE.epoch),
        Scope(deployment=DeploymentId("x" * 41), epoch=SCOPE.epoch),
        Scope(deployment=DeploymentId("modèle"), epoch=SCOPE.epoch),
        Scope(deployment=DeploymentId("a\0b"), epoch=SCOPE.epoch),
        Scope(deployment=DeploymentId("a"), epoch=Epoch(number=-1, coordinator=NodeId("0" * 16))),
        Scope(deployment=DeploymentId("a"), epoch=Epoch(number=1, coordinator=NodeId("0" * 14))),
    ],
)
def test_a_scope_that_does_not_fit_is_refused(scope: Scope) -> None:
    with pytest.raises(ValueError, match=r"deployment id|epoch|ascii"):
        encode_scope(scope)


def test_epochs_are_compared_by_number_then_coordinator() -> None:
    def scope(number: int, digit: str) -> Scope:
        epoch = Epoch(number=number, coordinator=NodeId(digit * 16))
        return Scope(deployment=DeploymentId("demo"), epoch=epoch)

    assert "lower" in describe_difference(scope(2, "b"), scope(1, "c"))
    assert "lower" in describe_difference(scope(2, "b"), scope(2, "a"))
    assert "higher" in describe_difference(scope(2, "b"), scope(2, "c"))
    other = Scope(deployment=DeploymentId("other"), epoch=SCOPE.epoch)
    assert "'other' is not 'demo'" in describe_difference(SCOPE, other)
