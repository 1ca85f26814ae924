"""Diagnosis of this machine, and of bundles on this or another one, for ``cutlass-aot doctor``."""
