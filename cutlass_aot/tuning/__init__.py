"""Measure the kernels of a bundle on the GPU at hand. torch is imported where it is used."""
