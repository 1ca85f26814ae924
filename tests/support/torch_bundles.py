"""A bundle for tests without a GPU: real rules about what its kernels take, torch.matmul for what they do."""

from __future__ import annotations

from typing import Any

import pytest

from cutlass_aot.errors import KernelNotFound
from cutlass_aot.runtime import policy
from cutlass_aot.runtime.launching.call import without_gradients
from cutlass_aot.runtime.launching.tensors import describe_operand, linear_as_gemm
from cutlass_aot.runtime.opened.finder import Choice
from cutlass_aot.runtime.selection import match
from cutlass_aot.runtime.selection.query import Query
from cutlass_aot.schema.bundles.catalog import FileReference, GroupEntry, Groups
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernels.kernel import Kernel
from tests.support.kernels import gemm
from tests.support.replace import replace

torch = pytest.importorskip("torch")

TARGET = "sm_90a"


def group(kernel: Kernel) -> GroupEntry:
    """A group of one kernel, without files."""
    return GroupEntry(
        name=kernel.group_name,
        operation=kernel.operation,
        operands=kernel.operands,
        accumulator=kernel.accumulator,
        epilogue=kernel.epilogue,
        target=kernel.target,
        kernel_count=1,
        child=FileReference("groups/none", 0, "0" * 64),
        code=FileReference("code/none", 0, "0" * 64),
        libraries={},
        parameters=kernel.parameters,
        accumulation=kernel.accumulation,
    )


class CpuBundle:
    """Behaves as an open bundle whose GPU is the CPU. ``launched`` has the operands of each launch."""

    version = "1.0.0"
    targets = (TARGET,)

    def __init__(self, kernels, name="fake", uses_rankings=True):
        self.name = name
        self.uses_rankings = uses_rankings
        self.launched: list[tuple[Any, ...]] = []
        kernels = list(kernels)
        groups = Groups.of([group(kernel) for kernel in kernels])
        contents = repr((name, kernels)).encode()
        self.groups = groups
        self.digest = digest(contents)

    def _query(self, operands, accumulator, accumulation):
        described = tuple(replace(describe_operand(operand), device=None) for operand in operands)
        return Query("gemm", "", accumulator, self.targets, "the CPU", described, accumulation=accumulation)

    def choose(self, *operands, accumulator=None, accumulation="exact"):
        query = self._query(operands, accumulator, accumulation)
        found = match.serving(self.groups, query, TARGET)
        if not found:
            raise KernelNotFound(match.not_found(self.name, self.groups, query))
        return Choice(found[0], "default order", "the first", tuple)

    def explain(self, *operands, accumulator=None):
        return match.explain(self.groups, self._query(operands, accumulator, "exact"))

    def gemm(self, a, b, out, *, accumulator=None, accumulation="exact", stream=None, workspace=None):
        a, b, out = without_gradients(("a", "b", "out"), (a, b, out))
        if len({operand.device for operand in (a, b, out)}) > 1:
            raise KernelNotFound("operands on several devices")
        try:
            found = self.choose(a, b, out, accumulator=accumulator, accumulation=accumulation).kernel
        except KernelNotFound as error:
            described = tuple(describe_operand(operand) for operand in (a, b, out))
            query = Query("gemm", "", accumulator, self.targets, "the CPU", described)
            policy.on_miss(error, query, (a, b, out), stream, workspace)
            return
        self.launched.append((a, b, out))
        wide = {"f64": torch.float64, "i32": torch.int32}.get(found.accumulator, torch.float32)
        out.copy_(torch.matmul(a.to(wide), b.to(wide)))

    def linear(self, x, weight, out, *, accumulator=None):
        self.gemm(*linear_as_gemm(x, weight, out), accumulator=accumulator)


def kernels(dtypes, layouts=("tnt", "ttt"), accumulator="f32", divisibility=2, accumulation=""):
    """One kernel for each of the layouts."""
    return [
        gemm(
            dtypes,
            layout,
            accumulator=accumulator,
            accumulation=accumulation,
            operands=tuple(
                replace(operand, divisibility=divisibility) for operand in gemm(dtypes, layout).operands
            ),
        )
        for layout in layouts
    ]


def bundle(**options):
    """A bundle for every element type that tests use, in the layouts of linear layers."""
    return CpuBundle(
        [
            *kernels(("f64", "f64", "f64"), accumulator="f64"),
            *kernels(("f32", "f32", "f32")),
            *kernels(("bf16", "bf16", "bf16")),
            *kernels(("bf16", "bf16", "f32"), ("tnt",)),
            *kernels(("i8", "i8", "i32"), ("tnt",), accumulator="i32"),
            *kernels(("f8e4m3", "f8e4m3", "f32"), ("tnt",)),
            *kernels(("f8e5m2", "f8e5m2", "bf16"), ("tnt",)),
        ],
        **options,
    )
