"""Manifests: TOML text to typed values; no generator and no DSL is imported to read one."""
