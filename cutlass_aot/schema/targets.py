"""GPU code targets: their hardware in one table, which GPUs and drivers run their code; and hosts.

Whatever depends on a target takes it from the table: generators by :func:`targets_with`, everything that
lists targets by :data:`KNOWN_TARGETS`.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType

from cutlass_aot.schema.named_tuple import NamedTuple

_TARGET = re.compile(r"sm_(\d{2,3})([af]?)", re.ASCII)


class Multiprocessor(NamedTuple):
    """Of an SM: the most threads and blocks at once, and its shared memory in bytes.

    Source: CUDA Programming Guide, "Technical Specifications per Compute Capability", and the header
    ``cuda_occupancy.h``; shared memory is also in the DSL (``SMEM_CAPACITY_MAP``, by block).
    """

    threads: int
    blocks: int
    shared_bytes: int

    @property
    def block_bytes(self) -> int:
        """Most shared memory of one block."""
        return self.shared_bytes - RESERVED_BYTES


RESERVED_BYTES = 1024
"""Shared memory that each block takes beside its own."""


class Hardware(NamedTuple):
    """What the GPUs of a target have, as far as kernels depend on it.

    Attributes:
        cuda: first CUDA version whose assembler writes code of the target.
        sm: limits of an SM.
        features: what its code may use, by the names in :data:`FEATURES`.
    """

    cuda: tuple[int, int]
    sm: Multiprocessor
    features: frozenset[str]


FEATURES: Mapping[str, str] = MappingProxyType(
    {
        "fp8": "converts to FP8 (PTX ISA, `cvt`)",
        "wgmma": "tensor cores of Hopper: `warpgroup.MmaF16BF16Op`",
        "tcgen05": "tensor cores of Blackwell, with tensor memory: `tcgen05.MmaF16BF16Op`",
        "tcgen05_scaled": "these with scale factors for blocks: `tcgen05.MmaMXF8Op`",
        "tcgen05_int8": "these with integers (PTX ISA, `tcgen05.mma`, `.kind::i8`)",
        "tcgen05_rubin": "tensor cores of Rubin: `tcgen05.SM107MmaFP8Op`",
        "mma_scaled": "warp-wide instructions with scale factors for blocks: `warp.MmaMXF8Op`",
    }
)
"""Features of targets, and where they are from: a test compares ``admissible_archs`` of the DSL's classes."""

_A100, _GA10X, _AD10X = (
    Multiprocessor(2048, 32, 164 << 10),
    Multiprocessor(1536, 16, 100 << 10),
    Multiprocessor(1536, 24, 100 << 10),
)
_LARGE = Multiprocessor(2048, 32, 228 << 10)
_RUBIN = Multiprocessor(2048, 32, 328 << 10)
_THOR = Multiprocessor(1536, 24, 228 << 10)
_BLACKWELL = frozenset({"fp8", "tcgen05", "tcgen05_scaled"})

HARDWARE: Mapping[str, Hardware] = MappingProxyType(
    {
        "sm_80": Hardware((11, 0), _A100, frozenset()),
        "sm_86": Hardware((11, 1), _GA10X, frozenset()),
        "sm_89": Hardware((11, 8), _AD10X, frozenset({"fp8"})),
        "sm_90a": Hardware((11, 8), _LARGE, frozenset({"fp8", "wgmma"})),
        "sm_100a": Hardware((12, 8), _LARGE, _BLACKWELL | {"tcgen05_int8"}),
        "sm_100f": Hardware((12, 9), _LARGE, _BLACKWELL),
        "sm_103a": Hardware((12, 9), _LARGE, _BLACKWELL),
        # The DSL has no instruction with scale factors for this one.
        "sm_103f": Hardware((12, 9), _LARGE, _BLACKWELL - {"tcgen05_scaled"}),
        "sm_107a": Hardware((13, 4), _RUBIN, _BLACKWELL | {"tcgen05_rubin"}),
        "sm_110a": Hardware((13, 0), _THOR, _BLACKWELL | {"tcgen05_int8"}),
        "sm_120a": Hardware((12, 8), _AD10X, frozenset({"fp8", "mma_scaled"})),
        "sm_121a": Hardware((12, 9), _AD10X, frozenset({"fp8", "mma_scaled"})),
    }
)
"""Targets that a manifest may name: those that DSL 4.8 compiles for and that are deployed.

Sources of ``cuda``: CUDA release notes (Ampere 11.0 and 11.1, Ada and Hopper 11.8, sm_100 and sm_120 12.8,
sm_103, sm_121 and targets of families 12.9, sm_110 13.0: before, Thor was sm_101, sm_107 13.4).
"""

KNOWN_TARGETS = tuple(HARDWARE)
"""Names of the targets, oldest first."""


def targets_with(*features: str) -> tuple[str, ...]:
    """The targets that have all of these features, in the order of the table; all if none is given."""
    unknown = set(features) - FEATURES.keys()
    if unknown:
        raise ValueError(f"unknown features {sorted(unknown)}: expected some of {', '.join(FEATURES)}")
    return tuple(name for name, hardware in HARDWARE.items() if hardware.features.issuperset(features))


HOSTS = {"aarch64": "aarch64-linux-gnu", "x86_64": "x86_64-linux-gnu"}
"""CPU architectures that a bundle can be linked for, with the compiler triple of each."""

DEFAULT_HOSTS = ("x86_64",)
"""Default hosts of a bundle, which do not depend on the machine that builds it."""


class Target(NamedTuple):
    """A GPU code target such as ``sm_100a``, which is major 10, minor 0, suffix ``"a"``.

    Suffix ``""`` runs on the same major from this minor on, ``"f"`` on the family, which is the same major
    from this minor on, and ``"a"`` on exactly this compute capability.
    Source: CUDA Programming Guide, "Feature Set Compiler Targets".
    """

    major: int
    minor: int
    suffix: str

    @classmethod
    @cache
    def parse(cls, name: str) -> "Target":
        """Parse a name such as ``sm_90a``; ValueError for anything else."""
        match = _TARGET.fullmatch(name)
        if match is None:
            raise ValueError(f"{name!r} is not a target such as sm_90a, sm_100a or sm_100f")
        number = int(match.group(1))
        return cls(number // 10, number % 10, match.group(2))

    def __str__(self) -> str:
        return f"sm_{self.major}{self.minor}{self.suffix}"

    @property
    def number(self) -> int:
        """Compute capability as one number, ``100`` for 10.0."""
        return self.major * 10 + self.minor

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a cubin of this target runs on a GPU of this compute capability."""
        own = (self.major, self.minor)
        # A cubin for a Tegra GPU runs on that one only, and a Tegra GPU runs no other cubins.
        # Source: CUDA C++ Programming Guide, "Binary Compatibility".
        if self.suffix == "a" or not _TEGRA.isdisjoint((own, capability)):
            return own == capability
        return self.major == capability[0] and self.minor <= capability[1]

    @property
    def kind(self) -> str:
        """Which GPUs run its cubins: ``architecture-specific``, ``family`` or ``portable``."""
        return {"a": "architecture-specific", "f": "family", "": "portable"}[self.suffix]

    def preference(self, capability: tuple[int, int]) -> tuple[int, int]:
        """Sort key of targets that run: exact, then family, then portable; nearest minor first."""
        return ("af".index(self.suffix) if self.suffix else 2, capability[1] - self.minor)


_OTHERS = ((7, 0), (7, 5), (8, 7), (10, 1))
"""Compute capabilities of GPUs without a target: V100, T4, Orin, and Thor before CUDA 13.0.

Source: as of :mod:`cutlass_aot.schema.drivers`.
"""

# Text: compiling it takes long, and only messages need it.
_WRITTEN = r"(?:sm|compute)?[_ -]?(\d{1,2})[.]?(\d)([af]?)"


def target_meant(found: object, known: Iterable[str]) -> str:
    """The end of a message about a target that is none of the known: which of them may be meant instead.

    Other letters of one number look alike, and a misspelt number does; but GPUs of another number, such as
    sm_120a beside sm_100a, run other code. Those that run on the GPU are named then, also for its model.
    """
    from cutlass_aot.schema.drivers import compute_capability_of
    from cutlass_aot.schema.words import did_you_mean

    names = list(known)
    match = re.fullmatch(_WRITTEN, found, re.ASCII | re.IGNORECASE) if isinstance(found, str) else None
    capability = (int(match[1]), int(match[2])) if match else compute_capability_of(str(found))
    alike = [name for name in names if capability == Target.parse(name)[:2]]
    if match and alike:
        return f"; did you mean {' or '.join(map(repr, alike))}?"
    if capability is None or capability not in (*_OTHERS, *(Target.parse(name)[:2] for name in HARDWARE)):
        return did_you_mean(found, names)
    running = [name for name in names if Target.parse(name).runs_on(capability)]
    verb = "run" if len(running) > 1 else "runs"
    where = f"on GPUs of compute capability {capability[0]}.{capability[1]}"
    return f"; {' and '.join(running) or 'none of these'} {verb} {where}"


_FAMILIES_SINCE = (12, 9)
_TEGRA = frozenset({(8, 7)})


def minimum_cuda(target: Target) -> tuple[int, int]:
    """The first CUDA version whose driver runs cubins of ``target``.

    A target that is not in the table has that of the next older number there, if it is not one of a family.
    """
    own = HARDWARE.get(str(target))
    if own is not None:
        return own.cuda
    first: dict[int, tuple[int, int]] = {}
    for name, hardware in HARDWARE.items():
        number = Target.parse(name).number
        first[number] = min(first.get(number, hardware.cuda), hardware.cuda)
    cuda = first[max((number for number in first if number <= target.number), default=min(first))]
    return max(cuda, _FAMILIES_SINCE) if target.suffix == "f" else cuda
