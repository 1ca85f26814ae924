"""The page of support: its tables are there, and it and the pages of the operations know of each other."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

from tests.support.paths import REPOSITORY

DOCS = REPOSITORY / "docs" / "reference"
PAGE = (DOCS / "support.md").read_text(encoding="utf-8")
PAGES = (
    "block-scaled-gemm.md", "convolution.md", "dense-gemm.md", "epilogues.md", "grouped-gemm.md",
    "kernels.md", "mixed-input-gemm.md", "sm90-gemm.md", "tf32.md",
)  # fmt: skip


@pytest.fixture
def tables() -> ModuleType:
    from tools.check import support_tables

    return support_tables


def anchors(text: str) -> set[str]:
    """Of the headings, as they are on GitHub."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_every_table_is_on_the_page_and_none_is_empty(tables: ModuleType) -> None:
    assert re.findall(r"<!-- support: (.*?) -->", PAGE) == list(tables.SECTIONS)
    for name in tables.SECTIONS:
        head, _, *rows = tables.shown(PAGE, name).splitlines()
        assert rows, name
        assert {row.count("|") for row in rows} == {head.count("|")}


@pytest.mark.parametrize("page", PAGES)
def test_every_page_of_an_operation_links_to_its_table(page: str) -> None:
    found = re.findall(r"\(support\.md#([\w-]+)\)", (DOCS / page).read_text(encoding="utf-8"))
    assert found, page
    assert set(found) <= anchors(PAGE)
    assert f"({page})" in PAGE


def test_a_page_of_an_operation_is_one_of_them() -> None:
    """Whoever adds a page with operands and a manifest of its own adds it to the list above."""
    with_operands = {
        path.name
        for path in DOCS.glob("*.md")
        if "| operand |" in (text := path.read_text(encoding="utf-8")) and "[[kernels]]" in text
    }
    assert with_operands <= set(PAGES)
