"""The description of a bundle without its objects: its recipe, its kernels, and what they are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from cutlass_aot.builder.records import Selection
from cutlass_aot.schema.codec import AS_FILE, to_plain
from cutlass_aot.schema.encoding import digest, encode
from cutlass_aot.schema.tuning.tuning import Tuning


@dataclass(frozen=True, slots=True)
class Recipe:
    """The description of a bundle, apart from its kernels.

    Attributes:
        version: of the bundle's wheel.
        device: the device profiles of its kernels, in words.
        hosts: CPU architectures to link for.
        tuning: tuning files whose times go into the bundle, by the names that errors use.
    """

    name: str
    version: str
    device: str
    targets: tuple[str, ...]
    hosts: tuple[str, ...]
    tuning: Mapping[str, Annotated[Tuning, AS_FILE]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Origins:
    """What kernels are made from: part of their keys, and recorded in a bundle.

    Attributes:
        generators: name of each generator to its version and the digest of its sources.
        toolchain: the compiler's fingerprint.
        versions: package to version, of the compiler and of cutlass-aot.
        own_sources: digest of this package's modules, which put a bundle together.
        linkers: host to the fingerprint of its linker.
        code: name of each generator to the distributions whose code is in its kernels, with their versions.
    """

    generators: Mapping[str, str]
    toolchain: str
    versions: Mapping[str, str]
    own_sources: str
    linkers: Mapping[str, str]
    code: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def provenance(self) -> dict[str, str]:
        """The provenance recorded in a bundle: versions, and the toolchain."""
        return {**self.versions, "toolchain": self.toolchain}


@dataclass(frozen=True, slots=True)
class PlannedBundle:
    """Everything that determines a bundle's bytes; ``keys`` are in the kernels' order."""

    recipe: Recipe
    selection: Selection
    origins: Origins
    keys: tuple[str, ...]

    @property
    def digest(self) -> str:
        """The key in the store of the bundle's record; the same for all shards of one bundle."""
        return digest(
            encode(
                {
                    "recipe": to_plain(self.recipe),
                    "origins": to_plain(self.origins),
                    "keys": sorted(self.keys),
                    "rankings": [item.to_bytes() for item in self.selection.rankings],
                }
            )
        )
