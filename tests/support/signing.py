"""Keys that are the same in every run, and signatures put into bundles without looking at them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cutlass_aot.runtime.files.signatures import raw_bytes
from cutlass_aot.schema.bundles.catalog import MANIFEST_NAME
from cutlass_aot.schema.bundles.signature import NO_TERMS, Signature, Terms, key_id, signed_message


@dataclass(frozen=True)
class Key:
    """A key, with its files."""

    private: Any
    path: Path
    public: Path
    raw: bytes

    @property
    def id(self) -> str:
        return key_id(self.raw)

    def signature(self, manifest: bytes, terms: Terms = NO_TERMS) -> Signature:
        made = self.private.sign(signed_message(manifest, terms))
        return Signature(self.raw, made, sequence=terms.sequence, expires=terms.expires)

    def sign(self, bundle: Path, sequence: int = 0, expires: str = "") -> Path:
        """Sign whatever is there, sound or not."""
        signature = self.signature((bundle / MANIFEST_NAME).read_bytes(), Terms(sequence, expires))
        (bundle / "signatures").mkdir(exist_ok=True)
        (bundle / signature.path).write_bytes(signature.to_bytes())
        return bundle / signature.path


def make_key(folder: Path, number: int, passphrase: bytes | None = None) -> Key:
    """The key of this number, as ``key-NUMBER`` and ``key-NUMBER.pub``."""
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
    protection = (
        serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    )
    pem = serialization.Encoding.PEM
    folder.mkdir(parents=True, exist_ok=True)
    path, public = folder / f"key-{number}", folder / f"key-{number}.pub"
    path.write_bytes(private.private_bytes(pem, serialization.PrivateFormat.PKCS8, protection))
    public.write_bytes(
        private.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return Key(private, path, public, raw_bytes(private.public_key()))


def without_cryptography(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, the package cannot be imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
