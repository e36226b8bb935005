"""The cluster's certificate authority, which every member derives from the secret for itself.

The key is deterministic; certificates made with it differ from node to node in their signatures
and are valid all the same. Names are neutral: whoever connects to a node is shown its certificate.
This is the only module that needs the ``cryptography`` package.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from potluck.cluster.trust.credentials import Credentials, check_node_id
from potluck.cluster.trust.secret import Secret
from potluck.types.cluster import NodeId

_NOT_BEFORE = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NOT_AFTER = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
"""A board without a clock starts in 1970. There is no date on which a cluster should stop."""

_AUTHORITY_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cluster")])

_SERVER_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "potluck")])
_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", re.IGNORECASE)

_CURVE = ec.SECP256R1()
_CURVE_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of P-256: FIPS 186-5 and SEC 2, section 2.4.2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """The key that makes members, and its certificate."""

    private_key: ec.EllipticCurvePrivateKey = field(repr=False)
    certificate: x509.Certificate


def cluster_id(secret: Secret) -> str:
    """16 hexadecimal digits that tell clusters apart on one network. Public."""
    return _derive(secret, "cluster id", 8).hex()


def derive_authority(secret: Secret) -> Authority:
    """The authority of the secret's cluster: P-256, the same key on every node."""
    # 64 bits more than the order has, so that the remainder is even: FIPS 186-5, A.2.1.
    candidate = int.from_bytes(_derive(secret, "authority key", 40), "big")
    private_key = ec.derive_private_key(candidate % (_CURVE_ORDER - 1) + 1, _CURVE)
    public_key = private_key.public_key()
    certificate = (
        _certificate(_AUTHORITY_NAME, public_key, public_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
    )
    return Authority(private_key=private_key, certificate=_signed(certificate, private_key))


def fingerprint_of(authority: Authority) -> str:
    """Return the SHA-256 of the authority's certificate, as ``openssl x509 -fingerprint`` does."""
    return authority.certificate.fingerprint(hashes.SHA256()).hex(":").upper()


def issue_credentials(
    authority: Authority, node_id: NodeId, addresses: Iterable[str] = ()
) -> Credentials:
    """A new key for the node, and the certificate that makes it a member.

    ``addresses``: numeric IP addresses under which others reach it (for what checks them; Potluck
    does not). Raises ``ParameterError`` if ``node_id`` is not 16 hexadecimal digits.
    """
    check_node_id(node_id)
    private_key = ec.generate_private_key(_CURVE)
    names = [
        x509.DNSName(node_id),
        *(x509.IPAddress(ipaddress.ip_address(text)) for text in addresses),
    ]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node_id)])
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        _certificate(subject, private_key.public_key(), authority.private_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority.private_key, hashes.SHA256())
    )
    return Credentials(
        node_id=node_id,
        certificate_pem=_pem(certificate),
        private_key_pem=private_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        authority_pem=_pem(authority.certificate),
    )


def issue_server_certificate(authority: Authority, names: Iterable[str]) -> bytes:
    """Return a new key and a certificate for serving clients (PEM), which makes no member.

    ``names`` are host names and numeric IP addresses; what is neither is left out.
    """
    private_key = ec.generate_private_key(_CURVE)
    certificate = (
        _certificate(_SERVER_NAME, private_key.public_key(), authority.private_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(_alternative_names(names))), critical=False)
        .sign(authority.private_key, hashes.SHA256())
    )
    return _pem(certificate) + private_key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


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
    """Sign the same way every time, so that a fingerprint stays; OpenSSL can from 3.2 on."""
    try:
        return certificate.sign(private_key, hashes.SHA256(), ecdsa_deterministic=True)
    except (TypeError, UnsupportedAlgorithm):
        return certificate.sign(private_key, hashes.SHA256())


def _certificate(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, issuer_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    """What certificates of the authority and of nodes have in common.

    The serial number follows from the key: deterministic, and no two keys share one.
    """
    encoded = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_AUTHORITY_NAME)
        .public_key(key)
        .serial_number(int.from_bytes(hashlib.sha256(encoded).digest()[:16], "big") + 1)
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
    """Bytes for one purpose, from which neither the secret nor others' follow (RFC 5869)."""
    kdf = HKDF(
        algorithm=hashes.SHA256(),
        length=num_bytes,
        salt=b"potluck cluster 1",
        info=purpose.encode("ascii"),
    )
    return kdf.derive(secret.text.encode("ascii"))


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
