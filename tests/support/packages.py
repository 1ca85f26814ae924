"""Packages that tests need, or do without; importing one can take seconds."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

NO_TORCH = "raise ModuleNotFoundError('these programs do without torch', name='torch')\n"


def hide_torch(folder: Path) -> None:
    """Have programs in a folder do without torch, which tvm_ffi imports where it can; that takes seconds."""
    (folder / "torch.py").write_text(NO_TORCH, encoding="utf-8")


def installed(*distributions: str) -> pytest.MarkDecorator:
    """The mark of tests that need distributions, which skips them where one is missing. Imports nothing."""
    missing = [name for name in distributions if not _is_installed(name)]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def _is_installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True
