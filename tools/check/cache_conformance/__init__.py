"""A conformance suite for caches of ``cute.compile``.

It tests what a key must tell apart, what it should share, and what a killed writer must not leave behind.
"""
