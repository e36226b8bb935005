from __future__ import annotations

import datetime
import ipaddress
import subprocess
import sys

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from support.cluster.edges import OTHER_SECRET, SECRET

from potluck.cluster.network.trust.authority import cluster_id, derive_authority, issue_credentials
from potluck.cluster.network.trust.secret import parse_secret
from potluck.errors import ParameterError
from potluck.types.cluster import NodeId

NODE = NodeId("0123456789abcdef")


def test_key_is_the_one_that_rfc_5869_and_fips_186_5_give() -> None:
    key = HKDF(hashes.SHA256(), 40, b"potluck cluster 1", b"authority key").derive(SECRET.encode())
    order = 2**256 - 2**224 + 2**192 - 0x4319055258E8617B0C46353D039CDAAF
    scalar = int.from_bytes(key, "big") % (order - 1) + 1
    authority = derive_authority(parse_secret(SECRET))
    assert authority.private_key.private_numbers().private_value == scalar


def test_members_derive_the_same_and_others_another() -> None:
    one, two = (derive_authority(parse_secret(SECRET)) for _ in range(2))
    other = derive_authority(parse_secret(OTHER_SECRET))
    assert _public(one.certificate) == _public(two.certificate)
    assert one.certificate.serial_number == two.certificate.serial_number
    assert _public(one.certificate) != _public(other.certificate)
    # Names say nothing, not even which cluster it is.
    assert one.certificate.subject == other.certificate.subject


def test_cluster_id_is_short_stable_and_tells_clusters_apart() -> None:
    secret = parse_secret(SECRET)
    assert cluster_id(secret) == cluster_id(secret)
    assert cluster_id(secret) != cluster_id(parse_secret(OTHER_SECRET))
    assert len(cluster_id(secret)) == 16
    assert int(cluster_id(secret), 16)


def test_node_certificate_says_what_it_should() -> None:
    authority = derive_authority(parse_secret(SECRET))
    credentials = issue_credentials(authority, NODE, ["127.0.0.1", "fd00::1"])
    certificate = x509.load_pem_x509_certificate(credentials.certificate_pem)
    # The certificate that another member made accepts it.
    certificate.verify_directly_issued_by(derive_authority(parse_secret(SECRET)).certificate)
    assert certificate.subject.rfc4514_string() == f"CN={NODE}"
    assert certificate.not_valid_before_utc == datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    assert certificate.not_valid_after_utc == datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == [
        str(ipaddress.ip_address(text)) for text in ("127.0.0.1", "fd00::1")
    ]
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert not constraints.ca
    key = serialization.load_pem_private_key(credentials.private_key_pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.public_key() == certificate.public_key()


def test_every_node_certificate_has_a_key_of_its_own() -> None:
    authority = derive_authority(parse_secret(SECRET))
    one, two = (issue_credentials(authority, NODE) for _ in range(2))
    assert one.private_key_pem != two.private_key_pem
    assert one.private_key_pem.decode() not in repr(one)


@pytest.mark.parametrize("node_id", ["", "abc", "0123456789ABCDEF", "0123456789abcdef0", "x" * 16])
def test_only_node_ids_get_certificates(node_id: str) -> None:
    authority = derive_authority(parse_secret(SECRET))
    with pytest.raises(ParameterError, match="not a node id"):
        issue_credentials(authority, NodeId(node_id))


def test_a_worker_does_without_cryptography() -> None:
    script = (
        "import sys, potluck.cluster.network.edges.connect\n"
        "import potluck.cluster.network.edges.listener\n"
        "import potluck.cluster.network.trust.pem_files, potluck.cluster.network.trust.secret\n"
        "sys.exit('cryptography' in sys.modules or 'asyncio' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def _public(certificate: x509.Certificate) -> bytes:
    return certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
