"""A manifest's tuning files against what is planned: kernels that only a file knows are counted."""

from __future__ import annotations

import pytest

from cutlass_aot.builder.plan.tuned import check_planned
from cutlass_aot.errors import ManifestError
from tests.support.synthetic import entry, kernels
from tests.support.tunings import tuned_group, tuning

F16, BF16 = kernels(), kernels(dtypes=("bf16",) * 3)
FILES = {"t.json": tuning([tuned_group([entry(kernel) for kernel in group]) for group in (F16, BF16)])}


def test_kernels_that_are_not_planned_are_counted():
    assert check_planned(FILES, [*F16, *BF16], {}) == []
    count = len(F16) + len(BF16)
    assert check_planned(FILES, F16[1:], {}) == [
        f"select.tuning: t.json: {len(BF16) + 1} of the {count} kernels that it has times of are not in this "
        "build: they are left out"
    ]


def test_a_file_with_none_of_the_planned_kernels_is_refused():
    with pytest.raises(ManifestError, match="which this build does not have: leave the file out"):
        check_planned(FILES, kernels(dtypes=("f8e4m3", "f8e4m3", "bf16")), {})
