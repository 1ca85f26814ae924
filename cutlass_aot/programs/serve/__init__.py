"""Serving requests: ``cute.compile`` is answered from bundles."""
