"""A kernel of an open bundle: what it is, what it supports, and how to launch it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cutlass_aot.errors import OperandError
from cutlass_aot.runtime.group import Group
from cutlass_aot.runtime.launch import Plan, launch, make_plan
from cutlass_aot.runtime.operands import describe_operand
from cutlass_aot.schema.artifact import Facts
from cutlass_aot.schema.catalog import GroupEntry, KernelEntry
from cutlass_aot.schema.kernel import DesignValue, Kernel
from cutlass_aot.schema.operands import OperandDescription, Verdict, supports


class KernelHandle:
    """A kernel of an open bundle. Bundles make these; they are light and may be kept."""

    __slots__ = ("_group", "entry")

    def __init__(self, group: Group, entry: KernelEntry) -> None:
        self._group = group
        self.entry = entry

    @property
    def kernel(self) -> Kernel:
        """The whole record."""
        return self.entry.kernel

    @property
    def name(self) -> str:
        """Readable name."""
        return self.kernel.name

    @property
    def digest(self) -> str:
        """SHA-256 of the record."""
        return self.kernel.digest

    @property
    def group(self) -> GroupEntry:
        """The group of functionally equivalent kernels it is one of."""
        return self._group.entry

    @property
    def target(self) -> str:
        """GPU code target, such as ``sm_90a``."""
        return self.kernel.target

    @property
    def design(self) -> Mapping[str, DesignValue]:
        """How it computes: tile shape, cluster shape and so on."""
        return dict(self.kernel.design)

    @property
    def facts(self) -> Facts:
        """What was read back from its compiled code: registers, spills, sizes."""
        return self.entry.facts

    @property
    def workspace_bytes(self) -> int:
        """Bytes of device memory that a launch needs beside the operands; 0 for most kernels."""
        return self.kernel.workspace_bytes

    def __repr__(self) -> str:
        return f"<KernelHandle {self.name}>"

    def supports(self, *operands: Any) -> Verdict:
        """Whether it can be launched on these operands, by their descriptions.

        Args:
            operands: torch tensors, DLPack objects or descriptions, in the order of the call: a, b, out.

        Returns:
            A value that is true, or one that is false with a ``reason``.

        Raises:
            OperandError: if an operand cannot be described.
        """
        return supports(self.kernel.operands, [describe_operand(operand) for operand in operands])

    def launch(self, *operands: Any, stream: Any = None, workspace: Any = None) -> None:
        """Launch it; returns as soon as the work is queued.

        Args:
            operands: torch tensors or DLPack objects in the order of the call: a, b, out; without a batch
                or with the batch first. They have to stay alive until the stream is done with them, as for
                any launch on a stream that their allocator does not know of.
            stream: a torch or CuPy stream, an object with ``__cuda_stream__``, or a ``cudaStream_t`` as a
                number. None is the current stream of the operands' framework (torch, CuPy), and for
                other objects that of tvm_ffi's environment. 0 is the legacy default stream.
            workspace: where :attr:`workspace_bytes` is not 0, that many bytes as a contiguous u8 tensor on
                the operands' device, passed to the kernel after its operands. May be left out for torch
                tensors on torch's current stream.

        Raises:
            OperandError: if the operands are not supported (see :meth:`supports`), or have no memory.
            Incompatible: if the kernel cannot run on the operands' device.
            LaunchError: if compiled code refuses the call.
            DeviceError: if there is no driver, or it refuses the launch.
        """
        descriptions = [describe_operand(operand) for operand in operands]
        verdict = supports(self.kernel.operands, descriptions)
        if not verdict:
            raise OperandError(f"kernel {self.name}: {verdict.reason}")
        launch(self.plan(operands, descriptions), operands, stream, workspace)

    def plan(self, operands: Sequence[Any], descriptions: Sequence[OperandDescription]) -> Plan:
        """Map the kernel and plan its launches on operands that it supports.

        Raises:
            OperandError: if an operand has no memory on a CUDA device.
            Incompatible: if the kernel cannot run on the operands' device.
        """
        for constraint, operand, description in zip(
            self.kernel.operands, operands, descriptions, strict=True
        ):
            if isinstance(operand, OperandDescription) or description.device is None:
                raise OperandError(
                    f"operand `{constraint.name}` is a description without memory: "
                    "descriptions serve find, supports and explain; launch on tensors"
                )
        device = descriptions[0].device
        function = self._group.function(self.entry, -1 if device is None else device)
        return make_plan(self.kernel, self.name, function, descriptions, operands)
