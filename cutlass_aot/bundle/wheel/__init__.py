"""Wheels of bundles: write them, split them, and read them without trusting them."""
