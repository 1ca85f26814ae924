"""The page of support says what the generators say: what is cheap to ask is asked for again."""

from __future__ import annotations

import pytest

from tools.check import support_tables as tables

pytestmark = pytest.mark.compile


def test_tables_of_the_page_are_what_the_generators_say():
    page = tables.PAGE.read_text(encoding="utf-8")
    generators = tables.Generators.start(2)
    with generators.pool:
        for name in ("grouped", "block-scaled layouts", "declared"):
            assert tables.rendered(generators, name) == tables.shown(page, name), name
        # The whole table takes a minute; these generators have few kernels. One of them serves every
        # target, so that there are the same columns.
        own = ["simt_f64_gemm", "sm90_gemm", "tf32_gemm"]
        rows = tables.by_operands(generators.answers(list(tables.dense()), None, own)).splitlines()
        assert len(rows) > len(own)
        assert set(rows) <= set(tables.shown(page, "dense").splitlines())
