"""Describing requests: what a program passes to ``cute.compile``, and the code that it follows from."""
