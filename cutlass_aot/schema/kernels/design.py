"""Design values in words: short names, and what a value matches; one rule for manifests and listings."""

from collections.abc import Container
from fnmatch import fnmatchcase

from cutlass_aot.schema.kernels.kernel import DesignValue

SHORT_NAMES = {
    "tile": "tile_shape",
    "cluster": "cluster_shape",
    "fallback_cluster": "fallback_cluster_shape",
    "scheduler": "tile_scheduler",
    "stages": "num_smem_stages",
}
"""Short names, with the names of ``cutlass.operators`` that they stand for."""


def full_name(name: str, known: Container[str] = ()) -> str:
    """The name in a design that a short name stands for; any other name stands for itself.

    Args:
        name: as somebody wrote it.
        known: names that there are; one of these stands for itself too.
    """
    return name if name in known else SHORT_NAMES.get(name, name)


def matches(allowed: str | int | bool, value: DesignValue) -> bool:
    """Whether a design value is what a manifest or a listing allows.

    Args:
        allowed: a value, or text with ``*``, ``?`` and ``[...]``. Shapes read ``256x128x64``, or their first
            extents; switches are booleans, or read ``true`` and ``false``.
        value: of a kernel's design.
    """
    if isinstance(value, bool):
        text = str(value).lower()
        return allowed is value or (isinstance(allowed, str) and fnmatchcase(text, allowed))
    if isinstance(allowed, bool):
        return False
    pattern = str(allowed)
    if isinstance(value, tuple):
        # A shape is text: in a list of numbers each would speak of the first extent alone.
        if not isinstance(allowed, str):
            return False
        # "256x128" speaks of the first two extents of 256x128x64.
        return fnmatchcase("x".join(str(extent) for extent in value[: pattern.count("x") + 1]), pattern)
    return fnmatchcase(str(value), pattern)
