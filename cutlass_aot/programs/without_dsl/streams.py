"""The DSL's streams, which programs pass to ``cute.compile`` and to kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cutlass_aot.programs.without_dsl.placeholders import by_name


def streams() -> Mapping[str, Any]:
    """``make_fake_stream`` and its class, and ``find_runtime_libraries``."""

    class _FakeStream:
        """Stands for the stream of a launch."""

        def __init__(self, *, use_tvm_ffi_env_stream: bool = False) -> None:
            self.use_tvm_ffi_env_stream = use_tvm_ffi_env_stream

        def __repr__(self) -> str:
            return "FakeStream"

    def make_fake_stream(*, use_tvm_ffi_env_stream: bool = False) -> _FakeStream:
        """A stream that is passed at each call, or that of the environment."""
        return _FakeStream(use_tvm_ffi_env_stream=use_tvm_ffi_env_stream)

    def find_runtime_libraries(*, enable_tvm_ffi: bool = True) -> list[str]:
        """TVM-FFI's library; the DSL's own are not installed."""
        if not enable_tvm_ffi:
            return []
        import tvm_ffi

        return [tvm_ffi.libinfo.find_libtvm_ffi()]

    return by_name(_FakeStream, make_fake_stream, find_runtime_libraries)


def torch_streams() -> Mapping[str, Any]:
    """torch's streams as ``CUstream``."""

    def current_stream() -> Any:
        import torch
        from cuda.bindings import driver

        return driver.CUstream(torch.cuda.current_stream().cuda_stream)

    def default_stream() -> Any:
        import torch
        from cuda.bindings import driver

        return driver.CUstream(torch.cuda.default_stream().cuda_stream)

    return by_name(current_stream, default_stream)
