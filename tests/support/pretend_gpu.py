"""torch with a GPU that is none: tensors on the CPU, and streams, events and graphs on a clock of their own.

A launch takes the time it says; what runs within a capture is recorded and runs when its graph is replayed.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import torch

from cutlass_aot.errors import LaunchError
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernels.kernel import Kernel


class PretendGpu:
    """Stands for the module ``torch``.

    Attributes:
        now: seconds of the GPU's clock.
        free_bytes: an allocation beyond this fails, as on a GPU that is full.
    """

    def __init__(self, free_bytes: int = 1 << 40) -> None:
        self.now = 0.0
        self.free_bytes = free_bytes
        self.capturing: list[Any] | None = None
        self.cuda = SimpleNamespace(
            Stream=lambda device: None,
            stream=lambda stream: contextlib.nullcontext(),
            current_stream=lambda: SimpleNamespace(synchronize=lambda: None),
            Event=lambda enable_timing: _Event(self),
            CUDAGraph=lambda: _Graph(self),
            OutOfMemoryError=torch.cuda.OutOfMemoryError,
            empty_cache=lambda: None,
            mem_get_info=lambda device: (free_bytes, free_bytes),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, kind: str, ordinal: int) -> Any:
        return torch.device("cpu")

    def empty(self, shape: Any, **options: Any) -> Any:
        made = torch.empty(shape, **options)
        if made.nbytes > self.free_bytes:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return made

    def mm(self, a: Any, b: Any) -> None:
        """Of the warm-up alone."""

    def run(self, work: Any) -> None:
        if self.capturing is None:
            work()
        else:
            self.capturing.append(work)


class _Event:
    def __init__(self, gpu: PretendGpu) -> None:
        self._gpu = gpu
        self.at = 0.0

    def record(self) -> None:
        self.at = self._gpu.now

    def elapsed_time(self, end: _Event) -> float:
        return (end.at - self.at) * 1e3


class _Graph:
    def __init__(self, gpu: PretendGpu) -> None:
        self._gpu = gpu
        self._work: list[Any] = []

    def capture_begin(self, capture_error_mode: str) -> None:
        assert self._gpu.capturing is None
        self._gpu.capturing = self._work

    def capture_end(self) -> None:
        self._gpu.capturing = None

    def replay(self) -> None:
        assert self._gpu.capturing is None
        for work in self._work:
            work()


class PretendKernel:
    """A kernel's handle: it computes the product with torch, and takes ``seconds`` for it.

    Args:
        gpu: whose clock goes on.
        kernel: the record.
        seconds: of a launch.
        fault: what is wrong with it: ``wrong``, ``unwritten``, ``refused`` or ``uncapturable``.
    """

    def __init__(self, gpu: PretendGpu, kernel: Kernel, seconds: float, fault: str = "") -> None:
        self._gpu = gpu
        self._seconds = seconds
        self._fault = fault
        self.kernel = kernel
        self.entry = SimpleNamespace(kernel=kernel, object_sha256=digest(kernel.digest.encode()))
        self.name = kernel.name
        self.digest = kernel.digest
        self.group = SimpleNamespace(operands=kernel.operands, name=kernel.group_name)
        self.launches = 0
        self.addresses: list[int] = []
        self._operands: tuple[bytes, bytes] | None = None

    def launch(self, a: Any, b: Any, out: Any) -> None:
        if self._fault == "refused":
            raise LaunchError(f"kernel {self.name} refused the call")
        if self._fault == "uncapturable" and self._gpu.capturing is not None:
            raise LaunchError("operation not permitted when stream is capturing")
        replayed = self._gpu.capturing is not None
        self._gpu.run(lambda: self._compute(a, b, out, replayed))

    def _compute(self, a: Any, b: Any, out: Any, replayed: bool) -> None:
        self._gpu.now += self._seconds
        self.launches += 1
        self.addresses.append(a.data_ptr())
        if replayed:
            # Nobody looks at the result; that the operands are right tells that nothing wrote over them.
            assert self._operands == (bytes_of(a), bytes_of(b))
            return
        self._operands = bytes_of(a), bytes_of(b)
        if self._fault == "unwritten":
            return
        product = torch.matmul(a.double(), b.double())
        if self._fault == "wrong":
            product[0, 0, 0] += 4
        out.copy_(product)


def bytes_of(tensor: Any) -> bytes:
    """What a tensor holds, in its logical order."""
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()
