"""Import an optional package, of a release that is new enough, or say what to install."""

from __future__ import annotations

import functools
import importlib
from importlib import metadata
from typing import Any

from cutlass_aot.schema.versions import release

LOWER_BOUNDS = {
    "cryptography": "38",
    "distributed": "2024.1",
    "fsspec": "2024.2",
    "jax": "0.9.1",
    "jax-tvm-ffi": "0.1.3",
    "numpy": "1.26",
    "oras": "0.2.43",
    "requests": "2.32.2",
    "rich": "13",
    "torch": "2.11",
    "urllib3": "2.2",
}
"""The oldest releases that will do, by distribution, as ``pyproject.toml`` has them: a test compares."""


def optional(module: str, raises: type[Exception], purpose: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: its name; the distribution is the one of :data:`LOWER_BOUNDS` with the name of its package.
        raises: the error for one that cannot be imported, or is too old.
        purpose: what needs the package, which begins the error's message.
    """
    name = module.partition(".")[0].replace("_", "-")
    bound = LOWER_BOUNDS[name]
    # Before the import: a release that is too old may fail at that with any error.
    found = _installed(name)
    if found and release(found) < release(bound):
        raise raises(
            f"{purpose} needs the package {name}, {bound} or newer, and {found} is installed: "
            f"pip install '{name}>={bound}'"
        )
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise raises(
            f"{purpose} needs the package {name}, which cannot be imported here ({error}): "
            f"pip install '{name}>={bound}'"
        ) from None
    # Such as an AttributeError of one that was built for another release of what it imports itself.
    except Exception as error:
        raise raises(
            f"{purpose} needs the package {name}, and importing {name} {found} fails with "
            f"{type(error).__name__}: {error}: install another release, or what it needs"
        ) from None


@functools.lru_cache(maxsize=len(LOWER_BOUNDS))
def _installed(name: str) -> str:
    """The installed release; ``""`` if it has no metadata, or a version that is none."""
    try:
        found = metadata.version(name)
        release(found)
    except (metadata.PackageNotFoundError, TypeError, ValueError):
        return ""
    return found
