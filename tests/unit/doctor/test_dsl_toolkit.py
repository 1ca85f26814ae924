"""Which libraries of the DSL compile here, and which targets they compile for."""

from __future__ import annotations

import pytest

from cutlass_aot.doctor import dsl_toolkit
from cutlass_aot.errors import ToolchainError
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.schema.targets import KNOWN_TARGETS

CU12, CU13 = "nvidia-cutlass-dsl-libs-cu12", "nvidia_cutlass_dsl_libs_cu13"


@pytest.mark.parametrize(
    ("names", "driver", "toolkit"),
    [
        ([], None, None),
        (["torch", "nvidia-cutlass-dsl-libs-base"], None, None),
        ([CU12], None, 12),
        ([CU12], (13, 0), 12),
        ([CU12, CU13], None, 13),
        ([CU12, CU13], (13, 4), 13),
        # The DSL takes libraries that the driver can run.
        ([CU12, CU13], (12, 9), 12),
        ([CU12, CU13], (11, 8), 13),
    ],
)
def test_the_newest_that_the_driver_supports(names, driver, toolkit, monkeypatch) -> None:
    def version():
        if driver is None:
            raise ToolchainError("no driver")
        return driver

    monkeypatch.setattr(cuda_driver, "driver_version", version)
    assert dsl_toolkit.dsl_toolkit(names) == toolkit


def test_targets_need_an_assembler_that_knows_them() -> None:
    assert dsl_toolkit.not_compiled(KNOWN_TARGETS, 12) == ["sm_107a", "sm_110a"]
    assert dsl_toolkit.not_compiled(KNOWN_TARGETS, 13) == []
    assert dsl_toolkit.not_compiled(KNOWN_TARGETS, None) == []
    assert dsl_toolkit.not_compiled(["sm_90"], 12) == []
    assert 'pip install "nvidia-cutlass-dsl[cu13]' in dsl_toolkit.toolkit_for("sm_110a")
