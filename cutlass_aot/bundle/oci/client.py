"""Open a registry, if its client is installed: nothing else here imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutlass_aot.bundle.oci.reference import Reference
from cutlass_aot.errors import ToolchainError

if TYPE_CHECKING:
    from cutlass_aot.bundle.oci.registry import Registry

TIMEOUT = 30.0
"""Seconds that a registry may be silent."""


def open_registry(reference: Reference, *, plain_http: bool, timeout: float) -> Registry:
    """The repository that ``reference`` names.

    Raises:
        ToolchainError: if the client is not installed.
        RegistryError: if docker's config file cannot be used.
    """
    try:
        from cutlass_aot.bundle.oci.registry import Registry
    except ImportError as error:
        raise ToolchainError(
            f"the client for registries is not installed ({error.name} is missing): "
            "pip install 'cutlass-aot[oci]'"
        ) from None
    return Registry(reference, plain_http=plain_http, timeout=timeout)
