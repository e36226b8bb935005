"""Certificate requests, with which a joining node gets certificates for its keys.

The joining node generates its keys and sends certificate signing requests (PKCS #10), which prove
that it has them; nothing else in a request is trusted. Needs the ``cryptography`` package.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from potluck.cluster.network.trust.authority import common_name, key_digest, private_pem
from potluck.errors import ParameterError

_NAME = common_name("newcomer")
_MAX_BYTES = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRequest:
    """A new key and a certificate request for it (PEM)."""

    private_key_pem: bytes = field(repr=False)
    request_pem: bytes


def new_request() -> KeyRequest:
    """Generate a key and a certificate request for it."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(_NAME)
    return KeyRequest(
        private_key_pem=private_pem(key),
        request_pem=request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
    )


def requested_key(request_pem: bytes) -> ec.EllipticCurvePublicKey:
    """Return the P-256 key that a request is for, after checking the request's signature.

    Raises ``ParameterError`` for anything else.
    """
    try:
        if len(request_pem) > _MAX_BYTES:
            raise ValueError("too long")
        request = x509.load_pem_x509_csr(request_pem)
        key = request.public_key()
        if (
            isinstance(key, ec.EllipticCurvePublicKey)
            and isinstance(key.curve, ec.SECP256R1)
            and request.is_signature_valid
        ):
            return key
        raise ValueError("it is not signed by a P-256 key")
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise ParameterError(
            "certificate_request", "the certificate request is not a valid request for a P-256 key"
        ) from error


def certificate_key_digest(certificate_der: bytes) -> bytes:
    """Return the SHA-256 of the SubjectPublicKeyInfo in a certificate. Raises ``ValueError``."""
    try:
        key = x509.load_der_x509_certificate(certificate_der).public_key()
    except UnsupportedAlgorithm as error:
        raise ValueError("the certificate's key has an unknown type") from error
    return key_digest(key)


def pem_key_digest(certificate_pem: bytes) -> bytes:
    """Return the SHA-256 of the SubjectPublicKeyInfo in a PEM certificate."""
    return key_digest(x509.load_pem_x509_certificate(certificate_pem).public_key())


def check_issued(certificate_pem: bytes, authority_pem: bytes, private_key_pem: bytes) -> str:
    """Return the common name of a certificate, which the authority must have issued for the key.

    Raises ``ParameterError`` if the three do not match.
    """
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority_pem))
        key = serialization.load_pem_private_key(private_key_pem, None)
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if certificate.public_key() != key.public_key() or len(names) != 1:
            raise ValueError("another key, or not exactly one name")
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise ParameterError(
            "certificate", "the certificate, its key and the authority do not match"
        ) from error
    return str(names[0].value)
