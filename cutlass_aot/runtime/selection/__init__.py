"""Choosing kernels: pure functions over what a caller asks and what the catalog says."""
