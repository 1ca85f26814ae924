"""What a kernel that was compiled is to a manifest: an operator, a record, a declared kernel as a sighting.

Nothing is imported: operators are looked at as they are.
"""

from __future__ import annotations

from typing import Any

from cutlass_aot.capture.found import Sighting
from cutlass_aot.errors import GeneratorError
from cutlass_aot.generators.cutlass_operators import epilogue_records, operands, records
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.manifest.model import GEMM_OPERATIONS
from cutlass_aot.runtime.asked import Parameters
from cutlass_aot.runtime.declared import DeclaredKernel
from cutlass_aot.schema.kernel import Kernel, Values

# Element types and layouts of these operands say what a GEMM is; its others follow from scales and epilogue.
_GEMM_OPERANDS = 3


def of_operator(operator: Any, compiled_for: Any) -> Sighting:
    """An operator of ``cutlass.operators``.

    Args:
        operator: of any family that the generator of the same name has.
        compiled_for: its target in the package's words, None if it was not compiled.

    Raises:
        GeneratorError: if a manifest cannot express it; says why.
    """
    family = records.family(operator)
    if family in operands.FAMILIES:
        if getattr(operator.metadata, "epilogue", None) is not None:
            raise GeneratorError("it has an epilogue, which kernels of its family in bundles have not")
        operation = "grouped_gemm" if family == operands.GROUPED else "gemm"
        problem = operands.problem_of(operator.metadata.operands, operation)
        traits = operands.design(operator)
    else:
        reason = records.refusal(operator)
        if reason:
            raise GeneratorError(reason)
        problem, traits = records.problem_of(operator), records.design(operator)
    return Sighting(records.GENERATOR, problem, Values.of(traits), target_text(compiled_for))


def of_record(kernel: Kernel, plugin: str) -> Sighting:
    """A kernel that policy jit compiled, of a generator.

    Args:
        kernel: its record.
        plugin: module to import for the generator, ``""`` for one that is known without.

    Raises:
        ManifestError: if it has an epilogue that is not written as those of manifests.
    """
    traits = {**dict(kernel.design), **dict(kernel.parameters)}
    if kernel.epilogue:
        # How operands move is said beside them, in the manifest's table of operands.
        traits.pop(epilogue_records.TRANSPORTS, None)
    return Sighting(kernel.generator, _problem(kernel), Values.of(traits), kernel.target, (), plugin)


def of_declared(kernel: DeclaredKernel, values: Parameters, target: str = "") -> Sighting:
    """A declared kernel with its parameters.

    Args:
        kernel: what is asked for, or was compiled.
        values: its parameters.
        target: that it was compiled for, ``""`` if it was only asked for.

    Raises:
        GeneratorError: if no build could import it.
    """
    module = kernel.function.__module__
    if module == "__main__":
        raise GeneratorError("declared in the program itself: move it to a module that a build can import")
    plugin = "" if module.startswith("cutlass_aot.") else module
    problem = Problem(kernel.name, (), "", "")
    return Sighting(kernel.name, problem, Values.of(values), target, tuple(kernel.targets), plugin)


def target_text(compiled_for: Any) -> str:
    """The name here of a target in the package's words; ``""`` for None."""
    return "" if compiled_for is None else f"sm_{str(compiled_for).removeprefix('sm_')}"


def _problem(kernel: Kernel) -> Problem:
    """The problem that a record was enumerated for, as a manifest's table describes it."""
    if kernel.operation in GEMM_OPERATIONS:
        if kernel.epilogue:
            return Problem(
                kernel.operation,
                tuple(operand.dtype for operand in kernel.operands[:_GEMM_OPERANDS]),
                kernel.layouts[:_GEMM_OPERANDS],
                kernel.accumulator,
                epilogue=epilogue_records.epilogue_of(kernel),
            )
        return operands.problem_of_kernel(kernel)
    if kernel.accumulator and not set(kernel.layouts) - {"t", "n"}:
        dtypes = tuple(operand.dtype for operand in kernel.operands)
        return Problem(kernel.operation, dtypes, kernel.layouts, kernel.accumulator)
    # An operation that fixes its operands itself.
    return Problem(kernel.operation, (), "", "")
