"""The page of support says what the generators say: what is cheap to ask is asked for again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.compile

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(os.fspath(TOOLS))
    import support_tables

    yield support_tables
    for name in ("support_tables", "epilogue_classes"):
        sys.modules.pop(name, None)


def test_tables_of_the_page_are_what_the_generators_say(tables):
    page = tables.PAGE.read_text(encoding="utf-8")
    asking = tables.Asking.start(2)
    with asking.pool:
        for name in ("grouped", "block-scaled layouts", "declared"):
            assert tables.rendered(asking, name) == tables.shown(page, name), name
        # The whole table takes a minute; these generators have few kernels. One of them serves every
        # target, so that there are the same columns.
        own = ["simt_f64_gemm", "sm90_gemm", "tf32_gemm"]
        rows = tables.by_operands(asking.answers(list(tables.dense()), None, own)).splitlines()
        assert len(rows) > len(own)
        assert set(rows) <= set(tables.shown(page, "dense").splitlines())
