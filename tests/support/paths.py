"""Where the repository's files are that tests use."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SUPPORT = Path(__file__).resolve().parent
FIXTURES = SUPPORT.parent / "fixtures"
TOOLS = REPOSITORY / "tools"
TEMPLATES = REPOSITORY / "cutlass_aot" / "cli" / "templates"
C_SOURCES = SUPPORT / "c"
