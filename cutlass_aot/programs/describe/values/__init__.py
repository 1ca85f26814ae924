"""Describing values: what a program passes to ``cute.compile``, as values of a request."""
