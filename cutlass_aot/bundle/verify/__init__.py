"""Verifying a bundle, a wheel, or what a path may be."""
