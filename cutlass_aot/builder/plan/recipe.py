"""What a bundle is to be, apart from the objects: its recipe, its kernels, and what they come from."""

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
    tuning: Mapping[str, Annotated[Tuning, AS_FILE]] = field(default_factory=dict)


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


@dataclass(frozen=True, slots=True)
class PlannedBundle:
    """Everything that a bundle's bytes follow from.

    Attributes:
        recipe: what the bundle is to be.
        selection: its kernels.
        origins: what they come from.
        keys: the kernels' keys, in their order.
    """

    recipe: Recipe
    selection: Selection
    origins: Origins
    keys: tuple[str, ...]

    @property
    def digest(self) -> str:
        """The key in the store of what came of it; the same for all shards of one bundle."""
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
