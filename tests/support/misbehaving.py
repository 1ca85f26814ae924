"""A generator whose kernels do what their design says: crash, hang, raise, exit."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from cutlass_aot.generators.registry import register
from tests.support.kernels import gemm


@register
class Misbehaving:
    name = "misbehaving"
    version = "1"
    operations = ("gemm",)
    modules = ("tests.support.misbehaving",)
    design: Mapping[str, str] = {"does": "what it does"}

    def targets(self, operation):
        return ("sm_80", "sm_90a")

    def enumerate(self, problem, target, device):
        if problem.accumulator == "f64":
            raise RuntimeError("cannot enumerate that")
        if problem.accumulator == "i32":
            yield gemm(design={"does": {"no", "encoding"}}, target=target, generator=self.name)
            return
        if problem.accumulator == "u8":
            for _ in range(2):
                yield gemm(design={"does": "raise"}, target=target, accumulator="u8", generator=self.name)
            return
        if problem.accumulator == "bf16":
            yield gemm(design={"colour": "x"}, target=target, accumulator="bf16", generator=self.name)
            return
        if problem.scales != (None, None):
            yield gemm(target=target, generator=self.name)
            return
        if problem.accumulator == "f16":
            yield gemm(layouts="ttt", target=target, accumulator="f16", generator=self.name)
            return
        for does in ("crash", "exit", "hang", "raise", "foreign"):
            yield gemm(design={"does": does}, target=target, generator=self.name)

    def compile(self, kernel):
        does = dict(kernel.design)["does"]
        print(f"about to {does}")
        if does == "crash":
            os.abort()
        if does == "fork":
            if os.fork() == 0:
                time.sleep(30)
                os._exit(0)
            os.abort()
        if does == "exit":
            os._exit(3)
        if does == "hang":
            time.sleep(600)
        if does == "memory":
            raise MemoryError
        if does == "disk":
            raise OSError(errno.ENOSPC, "No space left on device")
        if does == "linker":
            os.write(2, b"LLVM ERROR: out of memory\n")
            os._exit(1)
        if does == "undecodable":
            raise ValueError("no file \udcff")
        if does == "environment":
            raise ValueError(" ".join(sorted(os.environ)) + " " + " ".join(sys.path))
        if does == "cache":
            raise ValueError(
                f"{os.environ['CUTE_DSL_CACHE_DIR']} {os.environ['CUTE_DSL_DISABLE_FILE_CACHING']}"
            )
        if does == "raise":
            raise ValueError("no such instruction")
        return _NotAnObject()


class _NotAnObject:
    def export_to_c(self, path, *, function_name, export_only_tvm_ffi_symbols):
        Path(path).write_bytes(b"this is not an object file")
