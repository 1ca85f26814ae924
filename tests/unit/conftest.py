"""What several tests share and takes a moment to make."""

from __future__ import annotations

import pytest

from tests.unit.native import LAUNCHER, compile_c


@pytest.fixture(scope="session")
def launcher_library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A bundle's real launcher, compiled once a session."""
    return compile_c(tmp_path_factory.mktemp("launcher"), "launcher", LAUNCHER.read_text())
