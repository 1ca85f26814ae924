"""A manifest's tuning files against what is planned: kernels that only a file knows are counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cutlass_aot.builder.plan.tuned import check_planned
from cutlass_aot.errors import ManifestError
from cutlass_aot.tuning.fit import fit_tuning
from tests.support.synthetic import entry, kernels
from tests.support.tunings import tuned_group, tuning

F16, BF16 = kernels(), kernels(dtypes=("bf16",) * 3)
MEASURED = tuning([tuned_group([entry(kernel) for kernel in group]) for group in (F16, BF16)])
FILES = {"t.json": fit_tuning(MEASURED, [*F16, *BF16])}


def test_kernels_that_are_not_planned_are_counted():
    assert check_planned(FILES, [*F16, *BF16], {}) == []
    count = len(F16) + len(BF16)
    assert check_planned(FILES, F16[1:], {}) == [
        f"select.tuning: t.json: {len(BF16) + 1} of the {count} kernels that it has times of are not in this "
        "build: they are left out"
    ]


def test_times_without_a_cost_model_are_named():
    """Those of a measurement that was interrupted, say."""
    (note,) = check_planned({"t.json": MEASURED}, [*F16, *BF16], {})
    assert note == (
        f"select.tuning: t.json: no cost model is fitted to the times of {F16[0].group_name}, "
        f"{BF16[0].group_name}: problems that were not measured are chosen for without them; fit it with "
        "cutlass-aot tune BUNDLE --fit and this file, where BUNDLE is the one that was measured"
    )
    half = replace(FILES["t.json"], groups=(FILES["t.json"].groups[0], MEASURED.groups[1]))
    (note,) = check_planned({"t.json": half}, [*F16, *BF16], {})
    assert f"the times of {BF16[0].group_name}: problems" in note


def test_a_file_with_none_of_the_planned_kernels_is_refused():
    with pytest.raises(ManifestError, match="which this build does not have: leave the file out"):
        check_planned(FILES, kernels(dtypes=("f8e4m3", "f8e4m3", "bf16")), {})
