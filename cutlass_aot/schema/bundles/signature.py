"""A signature of a bundle: its record, the message that is signed, and what may be demanded of signatures.

``signatures/<key>.json`` in the bundle's directory, where ``<key>`` is what :func:`key_id` gives::

    {"schema": 2, "kind": "cutlass-aot signature", "algorithm": "ed25519",
     "public_key": "<64 hexadecimal digits>", "signature": "<128 hexadecimal digits>",
     "sequence": 7, "expires": "2027-06-30"}

Algorithm: Ed25519, RFC 8032, section 5.1; keys and signatures are the raw bytes of sections 5.1.5 and 5.1.6.
"""

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.bundles.catalog import MANIFEST_NAME
from cutlass_aot.schema.codec import OMIT, Check, Codec, Form, from_plain, header, to_plain, within
from cutlass_aot.schema.encoding import decode_json, digest
from cutlass_aot.schema.named_tuple import NamedTuple

SIGNATURES = "signatures"
"""Folder of a bundle that holds them."""

SIGNATURE_KIND = "cutlass-aot signature"
SIGNATURE_SCHEMA = 2
POLICY_KIND = "cutlass-aot trust policy"
POLICY_SCHEMA = 1
ALGORITHM: Final = "ed25519"
PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64

MAX_SIGNATURE_FILE = 1 << 16
"""Bytes of a signature's file."""

MAX_SIGNATURES = 64
"""Signatures of one bundle."""

MAX_SEQUENCE = (1 << 53) - 1
"""The largest whole number that every reader of JSON reads as it is."""

_AGAIN = "sign the bundle again"
_HEXADECIMAL = re.compile("[0-9a-f]*")
_DATE = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])")
_PATH = re.compile(rf"{SIGNATURES}/[0-9a-f]{{16}}\.json")


def key_id(public_key: bytes) -> str:
    """Id of a key: the first 16 hexadecimal digits of the SHA-256 of its 32 raw bytes."""
    return digest(public_key)[:16]


def signature_path(key: str) -> str:
    """Path in a bundle of the signature by the key with this id."""
    return f"{SIGNATURES}/{key}.json"


def is_signature_path(path: str) -> bool:
    """Whether a path in a bundle is one of :func:`signature_path`."""
    return _PATH.fullmatch(path) is not None


def _check_expiry(expires: str) -> None:
    if expires and not _DATE.fullmatch(expires):
        raise ValueError("expected a date such as 2027-06-30, or none")


class Terms(NamedTuple):
    """What a signature says besides that the bundle is the signer's.

    Attributes:
        sequence: a number that its signer raises with each release; 0 if it does not count.
        expires: last day, in UTC, on which it is good, such as ``2027-06-30``; ``""`` if it does not end.
    """

    sequence: Annotated[int, within(0, MAX_SEQUENCE)] = 0
    expires: Annotated[str, Check(_check_expiry)] = ""

    def __str__(self) -> str:
        parts = [f"sequence {self.sequence}"] if self.sequence else []
        return ", ".join([*parts, f"good until {self.expires}"] if self.expires else parts)


NO_TERMS = Terms()


def signed_message(manifest: bytes, terms: Terms = NO_TERMS) -> bytes:
    """The message to sign for a bundle: one line with the digest of the exact bytes of ``MANIFEST.json``.

    The manifest has the digest of every other file, so the signature covers these too, wherever the bundle
    is. The line names its purpose, so that a signature made for something else is never accepted for a
    bundle, and it is short, because signing devices and services take no long messages.
    """
    said = f"sequence {terms.sequence} expires {terms.expires or 'never'}"
    line = f"{SIGNATURE_KIND} {SIGNATURE_SCHEMA}: {MANIFEST_NAME} sha256 {digest(manifest)} {said}\n"
    return line.encode()


def _as_hexadecimal(size: int) -> Form:
    def read(data: Any, _what: str) -> bytes:
        if not isinstance(data, str) or len(data) != 2 * size or not _HEXADECIMAL.fullmatch(data):
            raise ValueError(f"expected {2 * size} hexadecimal digits")
        return bytes.fromhex(data)

    return Form(lambda _: Codec(read, bytes.hex))


@header(SIGNATURE_SCHEMA, SIGNATURE_KIND)
@dataclass(frozen=True, slots=True)
class Signature:
    """One signature, which is not verified here: 64 raw bytes, and the 32 of the key said to have made it."""

    public_key: Annotated[bytes, _as_hexadecimal(PUBLIC_KEY_BYTES)]
    signature: Annotated[bytes, _as_hexadecimal(SIGNATURE_BYTES)]
    algorithm: Literal["ed25519"] = ALGORITHM
    sequence: Annotated[int, within(0, MAX_SEQUENCE)] = 0
    expires: Annotated[str, Check(_check_expiry)] = ""

    @property
    def terms(self) -> Terms:
        """What is signed besides the manifest."""
        return Terms(self.sequence, self.expires)

    @property
    def key(self) -> str:
        """Id of the key (:func:`key_id`)."""
        return key_id(self.public_key)

    @property
    def path(self) -> str:
        """Its path in a bundle."""
        return signature_path(self.key)

    def to_bytes(self) -> bytes:
        """The file: JSON with sorted keys, one a line; no other bytes are accepted for this signature."""
        return json.dumps(to_plain(self), indent=1, sort_keys=True).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, what: str) -> "Signature":
        """Read an untrusted signature file, which has to be in canonical form."""
        if len(data) > MAX_SIGNATURE_FILE:
            raise CorruptFile(f"{what} has {len(data)} bytes, a signature has at most {MAX_SIGNATURE_FILE}")
        made = from_plain(cls, decode_json(data, what, _AGAIN), what, _AGAIN)
        # JSON allows several texts for one record (spaces, a key twice, further keys); accept one of them.
        if made.to_bytes() != data:
            raise CorruptFile(f"{what} has other bytes than its contents give: {_AGAIN}")
        return made


@header(POLICY_SCHEMA, POLICY_KIND)
@dataclass(frozen=True, slots=True)
class TrustPolicy:
    """What is demanded of signatures by the keys in one directory.

    Attributes:
        minimum_sequence: the lowest :attr:`Terms.sequence` that counts.
        require_expiry: whether a signature without a last day does not count.
    """

    minimum_sequence: Annotated[int, within(0, MAX_SEQUENCE), OMIT] = 0
    require_expiry: Annotated[bool, OMIT] = False

    @classmethod
    def from_bytes(cls, data: bytes, what: str) -> "TrustPolicy":
        """Read a policy's file."""
        advice = "correct it"
        return from_plain(cls, decode_json(data, what, advice), what, advice)
