"""What a bundle is to be, apart from the objects: its recipe, its kernels, and what they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cutlass_aot.builder.records import Selection
from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.encoding import MALFORMED, digest, encode
from cutlass_aot.schema.tuning.tuning import Tuning


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a bundle is to be, apart from its kernels.

    Attributes:
        name: the bundle's name.
        version: version of its wheel.
        device: the device profiles of its kernels, in words.
        targets: GPU code targets.
        hosts: CPU architectures to link for.
        tuning: tuning files whose times the bundle is to have, by their names for an error.
    """

    name: str
    version: str
    device: str
    targets: tuple[str, ...]
    hosts: tuple[str, ...]
    tuning: Mapping[str, Tuning] = field(default_factory=dict)

    def to_record(self) -> dict[str, Any]:
        """Plain data for the canonical encoding."""
        return {
            "name": self.name,
            "version": self.version,
            "device": self.device,
            "targets": self.targets,
            "hosts": self.hosts,
            "tuning": {name: tuning.to_bytes() for name, tuning in self.tuning.items()},
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Recipe:
        """Read what :meth:`to_record` gave."""
        try:
            return cls(
                name=str(record["name"]),
                version=str(record["version"]),
                device=str(record["device"]),
                targets=tuple(map(str, record["targets"])),
                hosts=tuple(map(str, record["hosts"])),
                tuning={
                    str(name): Tuning.from_bytes(data, f"the tuning file {name}")
                    for name, data in sorted(record["tuning"].items())
                },
            )
        except MALFORMED as error:
            raise CorruptFile(f"a recipe is malformed: {error!r}") from None


@dataclass(frozen=True, slots=True)
class Origins:
    """What kernels come from: part of their keys, and recorded in a bundle.

    Attributes:
        generators: name of each generator to its version and the digest of its sources.
        toolchain: the compiler's fingerprint.
        versions: package to version, of the compiler and of cutlass-aot.
        own_sources: digest of this package's modules, which put a bundle together.
        linkers: host to the fingerprint of what libraries are linked with.
    """

    generators: Mapping[str, str]
    toolchain: str
    versions: Mapping[str, str]
    own_sources: str
    linkers: Mapping[str, str]

    @property
    def provenance(self) -> dict[str, str]:
        """What builds the kernels, as a bundle says it."""
        return {**self.versions, "toolchain": self.toolchain}

    def to_record(self) -> dict[str, Any]:
        """Plain data for the canonical encoding."""
        return {
            "generators": dict(self.generators),
            "toolchain": self.toolchain,
            "versions": dict(self.versions),
            "own_sources": self.own_sources,
            "linkers": dict(self.linkers),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Origins:
        """Read what :meth:`to_record` gave."""
        try:
            return cls(
                generators=_texts(record["generators"]),
                toolchain=str(record["toolchain"]),
                versions=_texts(record["versions"]),
                own_sources=str(record["own_sources"]),
                linkers=_texts(record["linkers"]),
            )
        except MALFORMED as error:
            raise CorruptFile(f"the origins of kernels are malformed: {error!r}") from None


def inputs_digest(recipe: Recipe, selection: Selection, origins: Origins, keys: Sequence[str]) -> str:
    """Digest of everything that a bundle's bytes follow from."""
    return digest(
        encode(
            {
                "recipe": recipe.to_record(),
                "origins": origins.to_record(),
                "keys": sorted(keys),
                "rankings": [item.to_bytes() for item in selection.rankings],
            }
        )
    )


def _texts(table: Mapping[Any, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in table.items()}
