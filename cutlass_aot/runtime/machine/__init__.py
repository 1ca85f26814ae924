"""This machine: its GPUs, its host, and whether a bundle can be used on it."""
