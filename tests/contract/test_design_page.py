"""docs/internals/design.md: the files that it names are there."""

from __future__ import annotations

import re

from tests.support.paths import REPOSITORY

TEXT = (REPOSITORY / "docs" / "internals" / "design.md").read_text(encoding="utf-8")


def test_the_files_that_it_names_are_there() -> None:
    named = set(re.findall(r"(?<![\w/])[\w]+/(?:[\w]+/)*(?:[\w.]+\.(?:py|c))?(?=[`\s])", TEXT))
    named -= {"code/"}  # of a bundle
    assert len(named) > 50
    roots = (REPOSITORY, REPOSITORY / "cutlass_aot")
    assert [name for name in sorted(named) if not any((root / name).exists() for root in roots)] == []
