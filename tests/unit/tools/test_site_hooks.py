"""Links of the documents' site: those that leave docs/ become text, the others stay."""

from __future__ import annotations

import pytest

from tools.site_hooks import without_outside_links


@pytest.mark.parametrize(
    ("link", "shown"),
    [
        ("[store](../reference/store.md#commands)", None),
        ("[here](#below)", None),
        ("[oras](https://oras.land)", None),
        ("[C++](../../examples/cpp/README.md)", "C++ (`examples/cpp/README.md`)"),
        ("[source](../../cutlass_aot/x.py#L1)", "source (`cutlass_aot/x.py`)"),
    ],
)
def test_a_link_that_leaves_the_documents_is_its_text(link: str, shown: str | None) -> None:
    assert without_outside_links(f"See {link}.", "guides/trust.md") == f"See {shown or link}."
