"""A kernel of an open bundle: its properties, what it supports, and its launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from cutlass_aot.errors import CutlassAotError, LaunchError, MisplacedOperand, OperandError, ParameterError
from cutlass_aot.runtime.launching import native
from cutlass_aot.runtime.launching.call import call, translated, without_gradients, workspace_for
from cutlass_aot.runtime.launching.native import NativeAttribute
from cutlass_aot.runtime.launching.tensors import describe_operand
from cutlass_aot.runtime.opened.group import Group
from cutlass_aot.schema.bundles.catalog import GroupEntry
from cutlass_aot.schema.bundles.group_index import KernelEntry
from cutlass_aot.schema.kernels.artifact import Facts
from cutlass_aot.schema.kernels.design import DesignValue
from cutlass_aot.schema.kernels.operands import (
    OperandDescription,
    Rejected,
    Verdict,
    misplaced,
    supports,
    writes_nothing,
)

if TYPE_CHECKING:
    from typing import Protocol

    from cutlass_aot.schema.kernels.kernel import Kernel
    from cutlass_aot.schema.requests.request import CompiledRequest

    class Launch(Protocol):
        """How :attr:`KernelHandle.launch` is called."""

        def __call__(self, *operands: Any, stream: Any = None, workspace: Any = None) -> None:
            """See :attr:`KernelHandle.launch`."""


class KernelHandle:
    """A kernel of an open bundle. Made by the bundle; may be kept, and used from several threads."""

    def __init__(self, group: Group, position: int) -> None:
        self._group = group
        self._position = position
        self._function: Any = None
        self._assigned = False

    @property
    def entry(self) -> KernelEntry:
        """Its entry in the group's index."""
        entry: KernelEntry = self._group.index[self._position]
        return entry

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
        return self._group.index.digest(self._position)

    @property
    def group(self) -> GroupEntry:
        """The group of functionally equivalent kernels that it belongs to."""
        return self._group.entry

    @property
    def target(self) -> str:
        """GPU code target, such as ``sm_90a``."""
        return self._group.entry.target

    @property
    def design(self) -> Mapping[str, DesignValue]:
        """How it computes: tile shape, cluster shape and so on."""
        return self._group.index.design(self._position)

    @property
    def facts(self) -> Facts:
        """What was read back from its compiled code: registers, spills, sizes."""
        return self.entry.facts

    @property
    def request(self) -> CompiledRequest | None:
        """The request of a program that it answers; None for a kernel that is found by operands."""
        if self.group.requests is None:
            return None
        request: CompiledRequest = self._group.requests[self._position]
        return request

    @property
    def workspace_bytes(self) -> int:
        """Bytes of device memory that a launch needs besides the operands; 0 for most kernels."""
        return self._group.index.launch_facts(self._position).workspace_bytes

    def __repr__(self) -> str:
        return f"<KernelHandle {self.name}>"

    def supports(self, *operands: Any) -> Verdict:
        """Whether it can be launched on these operands, by their descriptions.

        Args:
            operands: torch tensors, DLPack objects or descriptions, in the order of the call: a, b, out.

        Returns:
            A true value, or a false one with the ``reason`` that :attr:`launch` would give.

        Raises:
            OperandError: if an operand cannot be described.
        """
        descriptions = [describe_operand(operand) for operand in operands]
        if problem := self._misplaced(descriptions):
            return Rejected(problem)
        return supports(self.group.operands, descriptions)

    def _misplaced(self, operands: Sequence[OperandDescription]) -> str:
        """Which operand is not on the one GPU of a launch, which is told first; ``""`` if there is none."""
        names = [constraint.name for constraint in self.group.operands]
        return misplaced(names, operands) if len(names) == len(operands) else ""

    @NativeAttribute
    def launch(self) -> Launch:
        """Launch it: ``launch(*operands, stream=None, workspace=None)``.

        Returns as soon as the work is queued. Nothing is launched where what it writes has no elements.
        Repeated calls on torch tensors go to native code without running any Python code in between.

        Args:
            operands: torch tensors or DLPack objects in the order of the call: a, b, out; without a batch or
                with the batch first. An output must not share memory with another operand, which is not
                checked. They have to stay alive until the stream is done with them, as for any launch on a
                stream that their allocator does not know of.
            stream: a torch or CuPy stream, an object with ``__cuda_stream__``, or a ``cudaStream_t`` as a
                number. None is the current stream of the operands' framework (torch, CuPy), and for other
                objects that of tvm_ffi's environment. 0 is the legacy default stream.
            workspace: where :attr:`workspace_bytes` is not 0, that many bytes as a contiguous u8 tensor on
                the operands' device, passed to the kernel after its operands. May be left out for torch
                tensors on torch's current stream.

        Raises:
            OperandError: if the operands are not supported (see :meth:`supports`), or have no memory. It is a
                :class:`~cutlass_aot.MisplacedOperand` if they are not on one GPU.
            Incompatible: if the kernel cannot run on the operands' device.
            LaunchError: if compiled code refuses the call.
            DeviceError: if there is no driver, or it refuses the launch.
        """
        launcher = self._group.launcher
        if launcher is None or self.workspace_bytes or self.group.requests is not None:
            return self._launch
        try:
            made: Launch = native.with_fallback(launcher, self._launch, self._raise)
        except CutlassAotError:
            # The fallback raises this too, but reports wrong operands first.
            return self._launch
        return made

    def _launch(self, *operands: Any, stream: Any = None, workspace: Any = None, **named: Any) -> None:
        """Serve a first launch, or one that native code does not take."""
        if named:
            from cutlass_aot.schema.words import did_you_mean

            name, options = next(iter(named)), ("stream", "workspace")
            raise ParameterError(
                f"the launch of kernel {self.name} has no parameter `{name}`{did_you_mean(name, options)}: "
                f"it takes the operands {', '.join(operand.name for operand in self.group.operands)} in this "
                f"order, and {' and '.join(options)} by name"
            )
        if self.group.requests is not None:
            raise LaunchError(
                f"kernel {self.name} answers a request of a program, which alone knows its arguments: have "
                "cutlass_aot.serve answer the program, or call what Bundle.compiled gives for the request"
            )
        names = [constraint.name for constraint in self.group.operands]
        taken: Sequence[Any] = operands
        try:
            taken = without_gradients(names, operands)
            device = self._device(taken)
        except Exception as error:
            raise self.failure(error, taken) from error
        self.launch_on(device, taken, stream, workspace)

    def launch_on(self, device: int, operands: Sequence[Any], stream: Any, workspace: Any) -> bool:
        """Launch it on operands of a known CUDA device ordinal which need no gradient; see :attr:`launch`.

        False if nothing was launched, because nothing that it writes has any elements.
        """
        try:
            arguments = list(operands)
            if self.workspace_bytes and not self._has_nothing_to_do(operands):
                given = workspace_for(self.workspace_bytes, self.name, operands, device, workspace, stream)
                arguments.append(given)
            launched = call(self.native_function(device), arguments, device, stream) is None
            if not launched and not (verdict := self.supports(*operands)):
                # Native code checks operands only where it has something to do.
                raise OperandError(f"kernel {self.name}: {verdict.reason}")
        except Exception as error:
            raise self.failure(error, operands) from error
        launcher = self._group.launcher
        if not self._assigned and launcher is not None and not self.workspace_bytes:
            native.assign(launcher, self.launch, self._function)
            self._assigned = True
        return launched

    def _raise(self, error: BaseException, operands: Sequence[Any]) -> None:
        if not isinstance(error, Exception):
            # A KeyboardInterrupt, say, while native code took the operands.
            raise error
        raise self.failure(error, operands) from error

    def native_function(self, device: int) -> Any:
        """The native function that launches it on a CUDA device: takes the operands, then any workspace.

        Raises:
            Incompatible: if the kernel cannot run there.
            BundleError: if its library cannot be read or mapped.
        """
        if self._function is None:
            self._function = self._group.function(self._position, device)
        else:
            self._group.require(device)
        return self._function

    def compiled_function(self, device: int) -> Any:
        """The ``tvm_ffi.Function`` of the compiled code itself, whose operands always have the batch first.

        ``device`` and errors are those of :meth:`native_function`.
        """
        return self._group.compiled(self._position, device)

    def _has_nothing_to_do(self, operands: Sequence[Any]) -> bool:
        constraints = self.group.operands
        if len(operands) != len(constraints):
            return False
        return writes_nothing(constraints, [describe_operand(operand) for operand in operands])

    def _device(self, operands: Sequence[Any]) -> int:
        """The CUDA device of the first operand that is on one; native code checks all of them."""
        if not operands or isinstance(operands[0], OperandDescription):
            raise OperandError("there is no tensor to launch on")
        for operand in operands:
            device = describe_operand(operand).device
            if device is not None and device >= 0:
                return device
        return -1

    def failure(self, error: Exception, operands: Sequence[Any]) -> CutlassAotError:
        """Translate an error of a launch on these operands into one of this package.

        The first that applies: an operand cannot be described, is on another device or is refused, the device
        cannot run the kernel, native code raised.
        """
        try:
            descriptions = [describe_operand(operand) for operand in operands]
            names = [constraint.name for constraint in self.group.operands]
            if problem := self._misplaced(descriptions):
                return MisplacedOperand(problem)
            verdict = supports(self.group.operands, descriptions)
            if not verdict:
                return OperandError(f"kernel {self.name}: {verdict.reason}")
            for constraint, operand, found in zip(self.group.operands, operands, descriptions, strict=True):
                without_memory = found.device is None and not found.is_number
                if isinstance(operand, OperandDescription) or without_memory:
                    return OperandError(
                        f"operand `{constraint.name}` is a description without memory: "
                        "descriptions serve find, supports and explain; launch on tensors"
                    )
            if not isinstance(error, CutlassAotError):
                self._group.require(self._device(operands))
        except CutlassAotError as found:
            return found
        return translated(error, self.name, names)


class KernelHandles(Sequence[KernelHandle]):
    """The kernels of a group, in the order of its index; each is made when it is first needed."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._count = len(group.index)
        # Filled without a lock: of two equal handles, one is kept.
        self._made: dict[int, KernelHandle] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> KernelHandle: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[KernelHandle]: ...

    def __getitem__(self, index: int | slice) -> KernelHandle | Sequence[KernelHandle]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(self._count))]
        position = range(self._count)[index]
        made = self._made.get(position)
        return made or self._made.setdefault(position, KernelHandle(self._group, position))
