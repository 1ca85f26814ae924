"""Tests of packages that may not be installed, skipped without an import, which can take seconds."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest


def installed(*distributions: str) -> pytest.MarkDecorator:
    """The mark of tests that need distributions; they are skipped where one is missing."""
    missing = [name for name in distributions if not _is_installed(name)]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def _is_installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True
