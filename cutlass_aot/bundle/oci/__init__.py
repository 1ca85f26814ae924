"""Bundles in OCI registries: push one, pull one.

Both raise :class:`~cutlass_aot.errors.RegistryNameError` for a malformed name, ``RegistryError`` if the
registry cannot be reached, refuses or has something other than a bundle, and ``ToolchainError`` without the
client.
"""

TIMEOUT = 30.0
"""Seconds that a registry may take for a request, by default."""
