"""Objects do not show which CPU compiled them, and the DSL is left as it was."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from cutlass_aot.builder.compile import export
from cutlass_aot.builder.link.kernel_object import KernelObject
from cutlass_aot.errors import ToolchainError

pytestmark = pytest.mark.compile

WRITTEN_BY_THE_DSL = {"<8 x i32>"}
"""Vectors that are in host code on every machine."""


def test_no_vector_of_this_cpu_is_in_host_code(objects: dict[str, Path]) -> None:
    """``tools/check/builder_host.py`` compares what three machines make; this is why it is the same."""
    for path in objects.values():
        text = KernelObject.from_bytes(path.read_bytes()).host_code
        assert "define i32 @__tvm_ffi_" in text
        assert set(re.findall(r"<\d+ x \w+>", text)) <= WRITTEN_BY_THE_DSL
        assert "target-cpu" not in text
        assert "target-features" not in text


def test_the_dsl_exports_as_before_afterwards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    levels = []

    def real(module: object, *, format: str, opt_level: int, enable_pic: bool) -> bytes:
        levels.append(opt_level)
        return b""

    class Broken:
        def export_to_c(self, path: str, *, function_name: str, export_only_tvm_ffi_symbols: bool) -> None:
            exporter._aot_support.export_module_to_bytes(None, format="ll", opt_level=3, enable_pic=True)
            raise RuntimeError("the disk is full")

    exporter: ModuleType = ModuleType(export._EXPORTER)
    exporter._aot_support = SimpleNamespace(export_module_to_bytes=real)
    monkeypatch.setitem(sys.modules, export._EXPORTER, exporter)
    with pytest.raises(RuntimeError, match="the disk is full"):
        export.export(Broken(), "symbol", tmp_path / "k.ll")
    exporter._aot_support.export_module_to_bytes(None, format="ll", opt_level=3, enable_pic=True)
    assert levels == [0, 3]


def test_another_dsl_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, export._EXPORTER, ModuleType(export._EXPORTER))
    with pytest.raises(ToolchainError, match="exports in a way that is not known: install the release"):
        export.export(SimpleNamespace(), "symbol", tmp_path / "k.ll")
