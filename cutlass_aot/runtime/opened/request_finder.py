"""Answer requests of programs from a bundle: with a compiled function, or with the nearest request."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cutlass_aot.errors import CorruptFile
from cutlass_aot.runtime.opened.bundle_directory import BundleDirectory
from cutlass_aot.runtime.opened.group import Group
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from cutlass_aot.schema.bundles.catalog import GroupEntry, signature
from cutlass_aot.schema.named_tuple import NamedTuple
from cutlass_aot.schema.requests.request import (
    OPERATION,
    CallByName,
    Difference,
    Request,
    default_value,
    differences,
)


class CompiledFunction(NamedTuple):
    """The answer to a request.

    Attributes:
        function: takes the arguments that the function returned by ``cute.compile`` takes: the
            ``tvm_ffi.Function`` itself, or, for arguments by name, TVM-FFI's wrapper of it.
        call: how it takes arguments by name; None if it takes them only in order.
        kernel: the bundle's kernel.
    """

    function: Any
    call: CallByName | None
    kernel: KernelHandle


class RequestFinder:
    """Finds the answers to programs' requests in a bundle; several threads may use it."""

    def __init__(self, directory: BundleDirectory) -> None:
        self._directory = directory
        # Filled without a lock, which a forked child could inherit held; two threads make equal values.
        self._by_target: dict[str, Mapping[str, Sequence[GroupEntry]]] = {}
        # By process, because libraries are mapped by process.
        self._found: dict[tuple[int, str], CompiledFunction] = {}

    @property
    def targets(self) -> tuple[str, ...]:
        """GPU code targets of its requests, sorted."""
        return tuple(target for target in self._directory.catalog.targets if self._groups(target))

    def find(self, request: Request) -> CompiledFunction | None:
        """The compiled function of a request; None if the bundle does not have it.

        The code is loaded onto the GPU at the first call; no GPU is needed before. Raises CorruptFile also if
        requests and kernels of the bundle do not match.
        """
        key = os.getpid(), request.digest
        found = self._found.get(key)
        if found is None:
            made = self._made(request)
            if made is not None:
                found = self._found.setdefault(key, made)
        return found

    def nearest(self, request: Request) -> tuple[Request, list[Difference]] | None:
        """The request of the bundle that differs least from a given one, and the differences.

        It is sought among the requests of the same callable, for any target; if there are none, among all.
        None if the bundle has no requests.
        """
        name = _name(request)
        groups = [entry for target in self.targets for entry in self._groups(target).get(name, ())]
        candidates = [other for other in self._requests(groups) if other.callable == request.callable]
        compared = [(other, differences(request, other)) for other in candidates or self.requests()]
        return min(compared, key=lambda pair: len(pair[1]), default=None)

    def requests(self) -> Iterator[Request]:
        """Every request of the bundle, each once; by target and callable."""
        return self._requests(self._all())

    def digests(self) -> Iterator[str]:
        """Digest of every request of the bundle, each once; no request is decoded."""
        return (digest for _, _, digest in self._rows(self._all()))

    @property
    def count(self) -> int:
        """Number of requests of the bundle."""
        return sum(1 for _ in self.digests())

    def _all(self) -> list[GroupEntry]:
        return [
            entry
            for target in self.targets
            for _, groups in sorted(self._groups(target).items())
            for entry in groups
        ]

    def _groups(self, target: str) -> Mapping[str, Sequence[GroupEntry]]:
        found = self._by_target.get(target)
        if found is None:
            by_name: dict[str, list[GroupEntry]] = {}
            for entry in self._directory.catalog.groups.with_signature(signature(OPERATION, (), "", target)):
                if entry.requests is not None:
                    by_name.setdefault(str(dict(entry.parameters).get("callable", "")), []).append(entry)
            found = self._by_target.setdefault(target, by_name)
        return found

    def _made(self, request: Request) -> CompiledFunction | None:
        kernel = request.kernel
        for entry in self._groups(request.target).get(_name(request), ()):
            group = self._directory.group(entry)
            position = group.requests.position(request.digest)
            if position is None:
                continue
            # Both files should have the same order, but only `verify` has checked that.
            if group.index.digest(position) != kernel.digest:
                raise CorruptFile(
                    f"{self._directory.path}: requests and kernels of {entry.name} do not belong together: "
                    "build the bundle again"
                )
            call = group.requests.call(position)
            # Checks host, C library and tvm-ffi, but no GPU: the program itself asked for this target, as it
            # would when compiling.
            function = group.compiled(position, None)
            if call is not None:
                function = _by_name(function, call, group)
            return CompiledFunction(function, call, self._directory.handles(entry)[position])
        return None

    def _rows(self, groups: Sequence[GroupEntry]) -> Iterator[tuple[Group, int, str]]:
        """Group, position and digest of every request, each once."""
        seen: set[str] = set()
        for entry in groups:
            group = self._directory.group(entry)
            for position in range(len(group.requests)):
                digest = group.requests.digest(position)
                if digest not in seen:
                    seen.add(digest)
                    yield group, position, digest

    def _requests(self, groups: Sequence[GroupEntry]) -> Iterator[Request]:
        for group, position, _ in self._rows(groups):
            request: Request = group.requests[position].request
            yield request


def _name(request: Request) -> str:
    return str(dict(request.kernel.parameters)["callable"])


def _by_name(function: Any, call: CallByName, group: Group) -> Any:
    """A compiled function that takes arguments by name, made as the DSL makes it."""
    from tvm_ffi.utils.kwargs_wrapper import make_kwargs_wrapper

    try:
        made = make_kwargs_wrapper(
            function,
            arg_names=list(call.names),
            arg_defaults=tuple(map(default_value, call.defaults)),
            kwonly_names=list(call.keyword_names),
            kwonly_defaults={name: default_value(item) for name, item in call.keyword_defaults.items()},
            map_dataclass_to_tuple=list(call.dataclasses),
        )
        # As the DSL's functions have it: the function that takes arguments in order.
        made.__tvm_ffi_object__ = lambda: function
        return made
    except (SyntaxError, TypeError, ValueError) as error:
        # TVM-FFI makes Python source of the names, and refuses what is not an identifier.
        raise CorruptFile(
            f"a function of {group.entry.name} cannot be called by name ({error}): build the bundle again"
        ) from None
