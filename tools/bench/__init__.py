"""Benchmarks: each prints its table."""
