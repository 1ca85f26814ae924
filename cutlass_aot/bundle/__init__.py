"""Bundles: write one, verify one, pack one as a wheel."""
