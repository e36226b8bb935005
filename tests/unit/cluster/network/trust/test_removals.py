from __future__ import annotations

import socket
import ssl
import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from support.cluster.edges import RECEIVER, SENDER, credentials

from potluck.cluster.network.trust.authority import authority_pem, cluster_id, derive_authority
from potluck.cluster.network.trust.credentials import REMOVED_NOTICE, RemovedNodeError
from potluck.cluster.network.trust.removals import (
    decode_lines,
    encode_lines,
    is_genuine,
    sign_removal,
)
from potluck.cluster.network.trust.removed import RemovedNodes
from potluck.cluster.network.trust.secret import generate_secret, parse_secret
from potluck.types.cluster import NodeId

SECRET = parse_secret(generate_secret())
AUTHORITY = derive_authority(SECRET)
CLUSTER = cluster_id(SECRET)
NODE = NodeId("00000000000000aa")


def test_a_removal_is_the_authoritys_alone() -> None:
    removal = sign_removal(AUTHORITY, CLUSTER, NODE, 1_700_000_000)
    pem = authority_pem(AUTHORITY)
    assert is_genuine(removal, CLUSTER, pem)
    other = derive_authority(parse_secret(generate_secret()))
    changed = removal.signature[:-1] + bytes([removal.signature[-1] ^ 1])
    for bad in (
        msgspec.structs.replace(removal, node_id="00000000000000ab"),
        msgspec.structs.replace(removal, time=removal.time + 1),
        msgspec.structs.replace(removal, signature=b""),
        msgspec.structs.replace(removal, signature=changed),
        msgspec.structs.replace(removal, node_id="../../etc"),
        sign_removal(other, CLUSTER, NODE, removal.time),
    ):
        assert not is_genuine(bad, CLUSTER, pem)
    assert not is_genuine(removal, "0" * 16, pem)


def test_the_file_of_removed_nodes(tmp_path: Path) -> None:
    path = tmp_path / "removed"
    removed = RemovedNodes(path)
    assert NODE not in removed
    removal = sign_removal(AUTHORITY, CLUSTER, NODE, 1)
    path.write_bytes(encode_lines([removal]))
    assert NODE in removed
    assert decode_lines(path.read_bytes() + b"x\ny z\n\xff 1 AA==\na -1 AA==\n")[0] == removal
    path.write_bytes(b"\xff")
    assert NODE in removed  # what was known stays
    path.unlink()
    assert NODE not in removed


@pytest.mark.slow
@pytest.mark.parametrize("is_server_informed", [True, False])
def test_a_handshake_with_a_removed_node_fails_on_either_side(
    tmp_path: Path, is_server_informed: bool
) -> None:
    path = tmp_path / "removed"
    server, client = credentials(RECEIVER), credentials(SENDER)
    if is_server_informed:
        server = replace(server, removed_path=str(path))
    else:
        client = replace(client, removed_path=str(path))
    server_context, client_context = server.server_context(), client.client_context()

    def shake() -> tuple[BaseException | None, BaseException | None, bytes]:
        ours, theirs = socket.socketpair()
        failures: list[BaseException | None] = [None, None]
        notice = b""

        def serve() -> None:
            try:
                with server_context.wrap_socket(ours, server_side=True) as connection:
                    connection.settimeout(20)
                    connection.recv(1)
            except OSError as error:
                failures[0] = error
            finally:
                ours.close()

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            with client_context.wrap_socket(theirs) as connection:
                connection.settimeout(2)
                notice = connection.recv(len(REMOVED_NOTICE))
        except TimeoutError:
            pass
        except (OSError, ssl.SSLError) as error:
            failures[1] = error
        finally:
            theirs.close()
        serving.join(10)
        return failures[0], failures[1], notice

    failed = shake()
    assert not any(isinstance(each, RemovedNodeError) for each in failed)
    # Contexts that are in use learn of it.
    removed = SENDER if is_server_informed else RECEIVER
    path.write_text(f"{removed} 1 AA==\n")
    at_server, at_client, notice = shake()
    if is_server_informed:
        assert isinstance(at_server, RemovedNodeError)
        assert notice == REMOVED_NOTICE
    else:
        assert isinstance(at_client, RemovedNodeError)
    path.unlink()
    failed = shake()
    assert not any(isinstance(each, RemovedNodeError) for each in failed)
