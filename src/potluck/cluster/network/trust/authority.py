"""The cluster's certificate authority, which every member derives from the secret.

The key is deterministic. Certificates issued on different nodes differ in their signatures but are
equally valid. Subject names are neutral because anyone who connects to a node sees its certificate.
Only this module, ``requests`` and ``removals`` need the ``cryptography`` package.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import re
import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from potluck.cluster.network.trust.credentials import Credentials, check_node_id, load_pem_chain
from potluck.cluster.network.trust.secret import Secret
from potluck.types.cluster import NodeId

_NOT_BEFORE = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NOT_AFTER = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
"""A board without a clock boots in 1970, and certificates must never expire under a cluster."""


def common_name(text: str) -> x509.Name:
    """Return a name that has only a common name."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


_AUTHORITY_NAME = common_name("cluster")
_SERVER_NAME = common_name("potluck")
_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", re.IGNORECASE)

_CURVE = ec.SECP256R1()
_CURVE_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""The order of P-256: FIPS 186-5 and SEC 2, section 2.4.2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """The key that issues node certificates, and its own certificate."""

    private_key: ec.EllipticCurvePrivateKey = field(repr=False)
    certificate: x509.Certificate


def cluster_id(secret: Secret) -> str:
    """Return the public ID of the cluster: 16 hexadecimal digits."""
    return _derive(secret, "cluster id", 8).hex()


def derive_authority(secret: Secret) -> Authority:
    """Return the authority of the secret's cluster: P-256, the same key on every node."""
    # 64 bits more than the order, so that the remainder is uniform: FIPS 186-5, A.2.1.
    candidate = int.from_bytes(_derive(secret, "authority key", 40), "big")
    private_key = ec.derive_private_key(candidate % (_CURVE_ORDER - 1) + 1, _CURVE)
    public_key = private_key.public_key()
    certificate = (
        _certificate(_AUTHORITY_NAME, public_key, public_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
    )
    return Authority(private_key=private_key, certificate=_signed(certificate, private_key))


def fingerprint_of(authority_pem: bytes) -> str:
    """Return the SHA-256 of the authority's certificate, as ``openssl x509 -fingerprint`` does."""
    certificate = x509.load_pem_x509_certificate(authority_pem)
    return certificate.fingerprint(hashes.SHA256()).hex(":").upper()


def issue_credentials(
    authority: Authority, node_id: NodeId, addresses: Iterable[str] = ()
) -> Credentials:
    """Return a new key for the node, and the certificate that makes it a member.

    ``addresses`` are the node's numeric IP addresses, for clients that verify them; Potluck does
    not. Raises ``ParameterError`` if ``node_id`` is not 16 hexadecimal digits.
    """
    private_key = ec.generate_private_key(_CURVE)
    return Credentials(
        node_id=node_id,
        certificate_pem=issue_certificate(authority, node_id, private_key.public_key(), addresses),
        private_key_pem=private_pem(private_key),
        authority_pem=authority_pem(authority),
    )


def issue_certificate(
    authority: Authority,
    node_id: NodeId,
    public_key: ec.EllipticCurvePublicKey,
    addresses: Iterable[str] = (),
) -> bytes:
    """Return the certificate (PEM) that makes the owner of a key a member; see
    ``issue_credentials``.
    """
    check_node_id(node_id)
    names = [
        x509.DNSName(node_id),
        *(x509.IPAddress(ipaddress.ip_address(text)) for text in addresses),
    ]
    usages = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
    return _issued(authority, common_name(node_id), public_key, usages, names)


def authority_pem(authority: Authority) -> bytes:
    """Return the authority's certificate (PEM)."""
    return _pem(authority.certificate)


def issue_server_credentials(authority: Authority, names: Iterable[str]) -> tuple[bytes, bytes]:
    """Return a new server certificate, which does not make its owner a member, and its key (PEM).

    ``names`` are host names and numeric IP addresses; anything else is ignored.
    """
    private_key = ec.generate_private_key(_CURVE)
    certificate = server_certificate_for(authority, private_key.public_key(), names)
    return certificate, private_pem(private_key)


def server_certificate_for(
    authority: Authority, public_key: ec.EllipticCurvePublicKey, names: Iterable[str]
) -> bytes:
    """Return a server certificate (PEM) for ``names`` and the given key."""
    usages = (ExtendedKeyUsageOID.SERVER_AUTH,)
    return _issued(authority, _SERVER_NAME, public_key, usages, _alternative_names(names))


def _issued(
    authority: Authority,
    subject: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    usages: Iterable[x509.ObjectIdentifier],
    names: Iterable[x509.GeneralName],
) -> bytes:
    certificate = (
        _certificate(subject, public_key, authority.private_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority.private_key, hashes.SHA256())
    )
    return _pem(certificate)


def _alternative_names(names: Iterable[str]) -> Iterator[x509.GeneralName]:
    for name in dict.fromkeys(names):
        try:
            yield x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            if _HOST_NAME.fullmatch(name):
                yield x509.DNSName(name)


def _signed(
    certificate: x509.CertificateBuilder, private_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    """Sign deterministically where OpenSSL can (3.2 or later), so that fingerprints are stable."""
    try:
        return certificate.sign(private_key, hashes.SHA256(), ecdsa_deterministic=True)
    except (TypeError, UnsupportedAlgorithm):
        return certificate.sign(private_key, hashes.SHA256())


def _certificate(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, issuer_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    """Return a builder with the fields that the certificates of the authority and of nodes share.

    The serial number is derived from the key, so it is deterministic and unique per key.
    """
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_AUTHORITY_NAME)
        .public_key(key)
        .serial_number(int.from_bytes(key_digest(key)[:16], "big") + 1)
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(_NOT_AFTER)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False
        )
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _derive(secret: Secret, purpose: str, num_bytes: int) -> bytes:
    """Derive key material for one purpose, independent of the secret's other uses (RFC 5869)."""
    kdf = HKDF(
        algorithm=hashes.SHA256(),
        length=num_bytes,
        salt=b"potluck cluster 1",
        info=purpose.encode("ascii"),
    )
    return kdf.derive(secret.text.encode("ascii"))


def key_digest(key: CertificatePublicKeyTypes) -> bytes:
    """Return the SHA-256 of a key's SubjectPublicKeyInfo."""
    return hashlib.sha256(
        key.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    ).digest()


def private_pem(private_key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key, unencrypted (PEM)."""
    return private_key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def client_tls_context() -> ssl.SSLContext:
    """Return a server context without a certificate.

    Clients of the HTTP API have no certificates of the cluster, and see certificates that do not
    authenticate a node to other nodes: they name no node, and are valid for servers only.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def automatic_context(authority: Authority, names: Iterable[str]) -> ssl.SSLContext:
    """Return a context with a new key and a certificate for ``names``, kept in memory only."""
    return context_of(b"".join(issue_server_credentials(authority, names)))


def context_of(chain_pem: bytes) -> ssl.SSLContext:
    """Return a context with the given certificate and key, such as those that an invited node
    stores.
    """
    context = client_tls_context()
    load_pem_chain(context, chain_pem)
    return context
