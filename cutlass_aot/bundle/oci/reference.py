"""Names of what is in a registry: ``registry/repository:tag`` or ``registry/repository@sha256:...``.

Grammar: https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pulling-manifests
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cutlass_aot.errors import RegistryNameError

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TAG = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
# A registry must have a dot or a port, or else it could be the first part of a repository.
_REGISTRY = r"(?=[^/]*[.:])[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?"
_REFERENCE = re.compile(
    rf"(?P<registry>{_REGISTRY})/(?P<repository>{_PART}(?:/{_PART})*)"
    rf"(?::(?P<tag>{_TAG}))?(?:@(?P<digest>{DIGEST.pattern}))?"
)
_MAX_LENGTH = 512


@dataclass(frozen=True, slots=True)
class Reference:
    """The name of a bundle in a registry.

    Attributes:
        registry: host name, with a port if it is not the usual one.
        tag: may be moved to another manifest; ``""`` for none.
        digest: of the OCI manifest, ``sha256:`` and 64 hexadecimal digits; ``""`` for none; preferred to the
            tag.
    """

    registry: str
    repository: str
    tag: str
    digest: str

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read ``registry/repository:tag`` or ``registry/repository@sha256:...``.

        Anything else is a :class:`RegistryNameError`, which does not repeat what might be a password.
        """
        found = _REFERENCE.fullmatch(text) if len(text) <= _MAX_LENGTH else None
        if found is None:
            shown = "a name with a user in it" if "@" in text.partition("/")[0] else ascii(text[:200])
            raise RegistryNameError(
                f"{shown} names nothing in a registry: expected registry/repository:tag or "
                "registry/repository@sha256:<64 digits>, the registry with a dot or a port, such as "
                "registry.example.org/kernels/sm90:1.0 or localhost:5000/sm90:1.0; "
                "log in with docker login or oras login, not in the name"
            )
        named = found.groupdict(default="")
        return cls(named["registry"], named["repository"], named["tag"], named["digest"])

    @property
    def tag_or_digest(self) -> str:
        """What a manifest is requested by: the digest if there is one, else the tag."""
        return self.digest or self.tag

    def at(self, digest: str) -> str:
        """The name of exactly one manifest, for ``pull`` and for records."""
        return f"{self.registry}/{self.repository}@{digest}"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")
