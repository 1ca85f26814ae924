"""An open bundle: find kernels for operands, choose one, explain the choice, and launch it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutlass_aot.runtime.dispatch import RUNNING, Dispatcher, in_order
from cutlass_aot.runtime.files import trust
from cutlass_aot.runtime.launching.native import NativeAttribute
from cutlass_aot.runtime.machine.process_lock import ProcessLock
from cutlass_aot.runtime.opened.bundle_directory import BundleDirectory, open_directory
from cutlass_aot.runtime.opened.finder import Choice, Finder, NamedOperands
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from cutlass_aot.runtime.selection.match import Explanation
from cutlass_aot.runtime.selection.query import Computation, Parameters
from cutlass_aot.schema.bundles.catalog import Catalog, Groups
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernels.accumulation import EXACT, RequestedAccumulation

if TYPE_CHECKING:
    from cutlass_aot.runtime.dispatch import Gemm, Linear
    from cutlass_aot.runtime.files.signatures import PublicKey
    from cutlass_aot.runtime.opened.request_finder import CompiledFunction, RequestFinder
    from cutlass_aot.schema.requests.request import Request

_opened: list[weakref.ref[Bundle]] = []
_lock = ProcessLock()
_FINDING = ("accumulation", "accumulator", "operation", "epilogue", "parameters", "target", "gpu")
"""What :meth:`Bundle.find` and its like take by name besides operands."""


def open_bundle(
    path: str | os.PathLike[str],
    *,
    check: bool = True,
    rankings: bool = True,
    keys: trust.KeyFiles | None = None,
) -> Bundle:
    """Open a bundle: its manifest and catalog are read and verified now, everything else when it is needed.

    Args:
        path: the bundle's directory.
        check: refuse a bundle that this machine cannot load. With False any bundle opens, for inspection, and
            the check comes with the first launch.
        rankings: choose by the measured and modelled speeds in the bundle. With False kernels come in the
            default order, so that the two can be compared.
        keys: files of public keys, or directories of them; one of the keys has to have signed the bundle.
            With None, :func:`cutlass_aot.trust` and ``CUTLASS_AOT_TRUSTED_KEYS`` decide.

    Raises:
        BundleError: if there is no bundle, or an incomplete one.
        CorruptFile: if a file is truncated, altered or foreign.
        SchemaTooNew: if a newer release wrote it.
        Incompatible: if the bundle cannot be used with this machine's CPU, C library or tvm-ffi.
        UntrustedBundle: if keys are required and none of them has signed it.
        SignatureError: if keys are required and cannot be read, or the package ``cryptography`` is not
            installed.
    """
    bundle = Bundle(open_directory(Path(path), rankings=rankings, keys=keys))
    if check:
        bundle.check_machine()
    return note_opened(bundle)


def note_opened(bundle: Bundle) -> Bundle:
    """Add a bundle to those in which declared kernels are looked up, for as long as something holds it.

    :func:`cutlass_aot.trust` goes by another list, of everything that was ever opened.
    """
    with _lock:
        # A new list, latest first and without bundles that are gone: other threads may be reading the old
        # one.
        _opened[:] = [weakref.ref(bundle), *(other for other in _opened if other() is not None)]
    return bundle


def opened_bundles() -> list[Bundle]:
    """Bundles that this process has opened and still holds, the latest first."""
    return [bundle for reference in list(_opened) if (bundle := reference()) is not None]


class Bundle:
    """An open bundle; made by :func:`cutlass_aot.open`. May be used from several threads."""

    def __init__(self, directory: BundleDirectory) -> None:
        self.directory = directory
        self._finder = Finder(directory)
        self._dispatcher = Dispatcher(self._finder, directory.launcher(), directory.catalog.alignment)
        self._requests: RequestFinder | None = None

    @property
    def name(self) -> str:
        """The bundle's name."""
        return self.catalog.name

    @property
    def version(self) -> str:
        """The bundle's version."""
        return self.catalog.version

    @property
    def path(self) -> Path:
        """The bundle's directory."""
        return self.directory.path

    @property
    def catalog(self) -> Catalog:
        """The index of all its groups."""
        return self.directory.catalog

    @property
    def digest(self) -> str:
        """SHA-256 of the catalog; bundles with equal digests have the same contents."""
        return digest(self.catalog.to_bytes())

    @property
    def targets(self) -> tuple[str, ...]:
        """GPU code targets it has kernels for."""
        return self.catalog.targets

    @property
    def uses_rankings(self) -> bool:
        """Whether measured and modelled speeds decide the choice; see :func:`open_bundle`."""
        return self.directory.uses_rankings

    @property
    def signers(self) -> tuple[PublicKey, ...]:
        """The required keys that have signed it; empty if none were required when it was opened."""
        return self.directory.signers

    @property
    def groups(self) -> Groups:
        """Its groups of functionally equivalent kernels, by name."""
        return self.catalog.groups

    @property
    def tuned_for(self) -> tuple[str, ...]:
        """GPU models, as their drivers name them, on which its kernels were measured."""
        return self._finder.tuned_for

    def __repr__(self) -> str:
        count = sum(group.kernel_count for group in self.groups)
        kernels = f"{count} kernel{'' if count == 1 else 's'}"
        return f"<Bundle {self.name} {self.version}: {kernels}, {', '.join(self.targets)}>"

    # -- lookup -----------------------------------------------------------------------------------------

    def find(
        self,
        /,
        *operands: Any,
        accumulator: str | None = None,
        accumulation: RequestedAccumulation = EXACT,
        operation: str = "gemm",
        epilogue: str | None = None,
        parameters: Parameters | None = None,
        target: str | None = None,
        gpu: str | None = None,
        **named: Any,
    ) -> list[KernelHandle]:
        """Kernels that support the operands, best first (:mod:`~.tiers`); never empty.

        Args:
            operands: a, b and out: torch tensors, DLPack objects or descriptions, (m, k), (k, n) and (m, n),
                or each with a batch first.
            accumulator: element type. None takes what the bundle has for these operands, preferring f32 for
                floating outputs, f64 for f64 and i32 for integers.
            accumulation: ``"exact"`` for sums with all bits of the accumulator; ``"fast"`` permits kernels
                that keep fewer of them, and prefers them, as ``use_fast_accum`` of ``torch._scaled_mm`` does.
                The two differ for FP8 without scale factors on sm_90a.
            operation: what is computed.
            epilogue: formula applied before the result is stored, ``""`` for none. None means no epilogue,
                or, with operands by name, the one epilogue that takes them.
            parameters: what the operation leaves open, by name.
            named: further operands by name, such as ``C=c``; numbers are passed as numbers.
            target: exact name of a GPU code target (``sm_90`` is not ``sm_90a``). None takes the best target
                that runs on the operands' GPU, or, for descriptions on no device, all targets of the bundle
                in turn.
            gpu: for operands on no device, the GPU model to order kernels for, as its driver names it
                (``NVIDIA H200``) or shorter (``h200``) where one of :attr:`tuned_for` is meant; if the bundle
                has several targets, ``target`` must be given too. Ignored for operands on a GPU.

        Raises:
            KernelNotFound: if there is none; names the query and the nearest groups. It is a
                :class:`~cutlass_aot.MisplacedOperand` if operands are not on one GPU.
            ParameterError: for a name that is close to that of a parameter or of an operand.
            OperandError: if an operand cannot be described, ``target`` is not the name of a target, or
                ``gpu`` is given without ``target`` for a bundle of several targets, can be several of
                :attr:`tuned_for`, or is a model of which nothing is known.
            Incompatible: if no kernel of the bundle runs on the operands' GPU with its driver.
            DeviceError: if operands are on a GPU that the driver does not know.
        """
        computation = Computation.of(operation, epilogue, accumulator, parameters, named, accumulation)
        with NamedOperands(self._finder, operation, named, _FINDING):
            return self._finder.find(computation, in_order(computation, operands, named), target, gpu)

    def choose(
        self,
        /,
        *operands: Any,
        accumulator: str | None = None,
        accumulation: RequestedAccumulation = EXACT,
        operation: str = "gemm",
        epilogue: str | None = None,
        parameters: Parameters | None = None,
        target: str | None = None,
        gpu: str | None = None,
        **named: Any,
    ) -> Choice:
        """The kernel that a launch on the operands takes, with the tier that chose it and the reason.

        Arguments and errors are those of :meth:`find`.
        """
        computation = Computation.of(operation, epilogue, accumulator, parameters, named, accumulation)
        with NamedOperands(self._finder, operation, named, _FINDING):
            return self._finder.choose(computation, in_order(computation, operands, named), target, gpu)

    def explain(
        self,
        /,
        *operands: Any,
        accumulator: str | None = None,
        accumulation: RequestedAccumulation = EXACT,
        operation: str = "gemm",
        epilogue: str | None = None,
        parameters: Parameters | None = None,
        target: str | None = None,
        **named: Any,
    ) -> Explanation:
        """For each group, whether it serves the operands, and if not why; nearest first.

        Arguments are those of :meth:`find`; None for ``accumulator`` or ``target`` means any.

        Returns:
            A list of (group, verdict). ``str`` of it has one line a group.

        Raises:
            OperandError: if an operand cannot be described, or ``target`` is not the name of a target.
        """
        computation = Computation.of(operation, epilogue, accumulator, parameters, named, accumulation)
        with NamedOperands(self._finder, operation, named, _FINDING):
            return self._finder.explain(computation, in_order(computation, operands, named), target)

    def kernels(self, **filters: str | Sequence[str]) -> list[KernelHandle]:
        """Kernels of the bundle, by group, family, tile shape, cluster shape, the rest of the design, name.

        Args:
            filters: by ``operation``, ``target``, ``accumulator``, ``accumulation``, ``epilogue``, ``dtypes``
                (``f16.f16.f32``), ``layouts`` (``tnt``), ``group``, ``generator``, ``name``, or the name of
                any design value or parameter. Each is a shell pattern, or several of which one has to match.
                Shapes are written ``128x256``, and extents left out at the end match any; switches are
                ``true`` or ``false``.

        Raises:
            ParameterError: for a filter that no kernel of the bundle has.
        """
        # Imported here and below: a launch needs no listing.
        from cutlass_aot.runtime.opened.filters import group_matches, matching

        groups = [group for group in self.groups if group_matches(group, filters)]
        return matching([h for group in groups for h in self._finder.handles(group)], filters)

    def kernel(self, name: str) -> KernelHandle:
        """The kernel with this name, or whose name begins or ends with it, or whose digest begins with it.

        Raises:
            BundleError: if there is none, or more than one.
        """
        from cutlass_aot.runtime.opened.filters import by_name

        return by_name(self.name, [h for group in self.groups for h in self._finder.handles(group)], name)

    def kernels_of(self, operation: str, parameters: Parameters) -> list[KernelHandle]:
        """Kernels of an operation with exactly these parameters, by target, then name."""
        expected = sorted((name, type(value), value) for name, value in parameters.items())
        return [
            handle
            for target in self.targets
            for entry in self.groups.of_operation(operation, target)
            # The type too: True == 1, but as parameters they differ.
            if [(name, type(value), value) for name, value in entry.parameters] == expected
            for handle in self._finder.handles(entry)
        ]

    # -- requests of programs ---------------------------------------------------------------------------

    @property
    def requests(self) -> RequestFinder:
        """The requests of programs that the bundle answers: to count, list and compare them."""
        if self._requests is None:
            # Imported here: most programs make no requests.
            from cutlass_aot.runtime.opened.request_finder import RequestFinder

            self._requests = RequestFinder(self.directory)
        return self._requests

    def compiled(self, request: Request) -> CompiledFunction | None:
        """The compiled function for a program's call of ``cute.compile``; None if the bundle has none.

        It takes the arguments that the function returned by ``cute.compile`` takes. No GPU is needed.

        Raises:
            Incompatible: if this machine cannot load the bundle's libraries.
            CorruptFile: if a file is truncated, altered or foreign.
            BundleError: if a file cannot be read, or a library cannot be mapped.
        """
        return self.requests.find(request)

    # -- launching --------------------------------------------------------------------------------------

    @NativeAttribute
    def gemm(self) -> Gemm:
        """Compute ``out = a @ b`` by the best kernel for it; the choice is remembered for similar operands.

        ``gemm(a, b, out, *, accumulator=None, accumulation="exact", epilogue=None, stream=None,
        workspace=None, **named)``.
        Repeated calls on torch tensors go to native code without running any Python code in between.

        Args:
            a: (m, k), or (batch, m, k).
            b: (k, n), or (batch, k, n).
            out: (m, n), or (batch, m, n); written. It must not share memory with a or b, which is not
                checked.
            accumulator: see :meth:`find`.
            accumulation: see :meth:`find`.
            epilogue: see :meth:`find`.
            stream: see :attr:`cutlass_aot.KernelHandle.launch`.
            workspace: see :attr:`cutlass_aot.KernelHandle.launch`.
            named: further operands by name: those of the epilogue, such as ``C=c`` and ``alpha=0.5``, or
                scale factors, ``a_scale`` and ``b_scale``.

        Raises:
            KernelNotFound: if the bundle has no kernel for the operands, unless :mod:`cutlass_aot.policy`
                says otherwise.
            MisplacedOperand: if the operands are not on one GPU.
            ParameterError: if an operand is missing, or for a name that is close to that of a parameter or of
                an operand.
            OperandError: if an operand cannot be described or launched on.
            Incompatible: if nothing of the bundle runs on the operands' GPU.
            LaunchError: if compiled code refuses the call.
            DeviceError: if there is no driver, or it refuses the launch.
        """
        return self._dispatcher.gemm

    @NativeAttribute
    def linear(self) -> Linear:
        """Compute ``out = x @ weight.T``, as torch.nn.functional.linear; otherwise like :attr:`gemm`.

        ``linear(x, weight, out, *, accumulator=None, accumulation="exact", stream=None, workspace=None)``, on
        torch tensors.
        No view of the weight has to be made for it, which costs about as much as the rest of a call.

        Args:
            x: (..., k); its leading modes must be viewable as one.
            weight: (n, k).
            out: (..., n), likewise; written.
            accumulator: see :meth:`find`.
            accumulation: see :meth:`find`.
            stream: see :attr:`cutlass_aot.KernelHandle.launch`.
            workspace: see :attr:`cutlass_aot.KernelHandle.launch`.

        Raises:
            OperandError: also if an operand is not a torch tensor, or cannot be viewed as a matrix.
            CutlassAotError: whatever else :attr:`gemm` raises.
        """
        return self._dispatcher.linear

    def run(
        self,
        operation: str,
        /,
        *operands: Any,
        accumulator: str | None = None,
        accumulation: RequestedAccumulation = EXACT,
        epilogue: str | None = None,
        parameters: Parameters | None = None,
        stream: Any = None,
        workspace: Any = None,
        **named: Any,
    ) -> None:
        """Compute any operation by the best kernel for it; otherwise like :meth:`gemm`, also in its errors.

        Args:
            operation: such as ``"grouped_gemm"``, or the name of a declared kernel.
            operands: in the order of the operation, without those given by name.
            accumulator: see :meth:`find`.
            accumulation: see :meth:`find`.
            epilogue: see :meth:`find`.
            parameters: what the operation leaves open, by name.
            stream: see :attr:`cutlass_aot.KernelHandle.launch`.
            workspace: see :attr:`cutlass_aot.KernelHandle.launch`.
            named: operands by name.
        """
        computation = Computation.of(operation, epilogue, accumulator, parameters, named, accumulation)
        self._dispatcher.run(computation, operands, named, RUNNING, stream, workspace)

    # -- this machine -----------------------------------------------------------------------------------

    def check_machine(self) -> None:
        """Raise :class:`Incompatible` if this machine cannot load the bundle's libraries; without a GPU."""
        self.directory.check_machine()

    def require(self, target: str, ordinal: int) -> None:
        """Refuse a target that cannot be used on this machine and GPU; the answer is remembered.

        Raises:
            Incompatible: with what was found and what is needed.
            DeviceError: if there is no driver or no such GPU.
        """
        self.directory.require(target, ordinal)
