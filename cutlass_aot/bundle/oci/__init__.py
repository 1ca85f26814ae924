"""Bundles in OCI registries: push one, pull one."""
