"""Answer ``cute.compile`` from bundles, in a program that was not written for it.

Once :func:`serve` has been called, each request is looked up in the bundles, those of the latest call first.
What none of them has is compiled if the policy allows it.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import multiprocessing.util
import os
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from cutlass_aot.errors import CutlassAotError, ProgramError, RequestError, RequestNotFound
from cutlass_aot.programs import without_dsl
from cutlass_aot.programs.describe.distributions import DSL, dsl_fingerprint
from cutlass_aot.programs.describe.profiles import sm_count_at_hand
from cutlass_aot.programs.describe.request import Surroundings, request_of
from cutlass_aot.programs.record.keep import Keeper
from cutlass_aot.programs.serve.explain import explain_miss
from cutlass_aot.programs.serve.ledger import Ledger
from cutlass_aot.programs.start.after_import import AfterImport
from cutlass_aot.programs.start.environment import SERVE_VARIABLE
from cutlass_aot.programs.start.files import write_whole
from cutlass_aot.programs.start.interception import Compile, Interception
from cutlass_aot.programs.start.packages import cache_environment, caches_left_on, known_variables
from cutlass_aot.programs.without_tvm_ffi import as_requested
from cutlass_aot.runtime import policy
from cutlass_aot.runtime.bundle import Bundle, open_bundle
from cutlass_aot.runtime.installed import open_installed
from cutlass_aot.runtime.opened.request_finder import CompiledFunction
from cutlass_aot.schema.bundles.catalog import MANIFEST_NAME
from cutlass_aot.schema.requests.request import Request

MODULE = "cutlass_aot.programs.serve.serve"
_log = logging.getLogger("cutlass_aot")
# Without one, a program that configures no logging would have each line on standard error.
_log.addHandler(logging.NullHandler())
_server: Server | None = None
_lock = threading.Lock()


class CompileWarning(UserWarning):
    """A program compiled what none of its bundles has."""


def serve(*bundles: str | os.PathLike[str] | Bundle) -> Server:
    """Answer this process's calls of ``cute.compile`` from bundles, from now on.

    Call it before importing the packages that compile. Their own caches of compiled kernels would answer
    first; environment variables, which the packages read at import, turn them off for the process.

    ::

        import cutlass_aot

        cutlass_aot.serve("fa4")
        from flash_attn.cute import flash_attn_func

    Args:
        bundles: names of installed bundles, directories, or open bundles. Those of a later call come before
            those of an earlier one; within a call they are searched in the order given.

    Returns:
        The server, whose ledger counts the requests that were answered and those that were not.

    Raises:
        BundleError: if a bundle is missing or incomplete.
        Incompatible: if this machine cannot load one.
        ProgramError: if a package was imported that answers from its own cache first.
    """
    global _server
    found = [opened(bundle) for bundle in bundles]
    with _lock:
        os.environ.update(cache_environment())
        early = caches_left_on()
        if early:
            raise ProgramError(
                f"{', '.join(early)} is on: the package was imported with its own cache of compiled kernels, "
                "which would answer before a bundle does; call cutlass_aot.serve before importing it"
            )
        if _server is None:
            _server = Server()
            _server.begin()
        _server.bundles = (*found, *_server.bundles)
        _server.forget_devices()
    return _server


def begin(plan: Mapping[str, Any]) -> None:
    """Serve a program that was started for it; an error ends the program.

    ``plan`` may have ``bundles`` (those of the environment variable if empty), ``policy``, ``without_dsl``
    (whether placeholders replace the DSL), and two folders: ``ledger`` for the ledgers of the processes, and
    ``keep`` for what they compile.
    """
    names = list(plan.get("bundles") or _bundles_of_environment())
    where = "" if plan.get("bundles") else f"{SERVE_VARIABLE}: "
    try:
        if plan.get("policy"):
            policy.set(str(plan["policy"]))
        if plan.get("without_dsl"):
            without_dsl.activate()
        if not names:
            raise ProgramError("it names no bundle: name one, or unset it")
        server = serve(*names)
    except CutlassAotError as error:
        # Python prints exceptions of its startup and goes on: a server must not run without its kernels.
        print(f"error: {where}{error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)
    if plan.get("keep"):
        server.keeper = Keeper(Path(plan["keep"]))
    if plan.get("ledger"):
        _write_ledger_at_the_end(server, Path(plan["ledger"]))


def _bundles_of_environment() -> list[str]:
    """Bundles of the environment variable, whose directories are made absolute for child processes."""
    names = [name for name in os.environ.get(SERVE_VARIABLE, "").split(os.pathsep) if name]
    names = [str(Path(name).absolute()) if is_directory(name) else name for name in names]
    os.environ[SERVE_VARIABLE] = os.pathsep.join(names)
    return names


def _write_ledger_at_the_end(server: Server, folder: Path) -> None:
    atexit.register(_write_ledger, server, folder)
    # Workers that `multiprocessing` forks end without exit handlers.
    multiprocessing.util.register_after_fork(
        server, lambda own: multiprocessing.util.Finalize(None, _write_ledger, (own, folder), exitpriority=0)
    )


def _write_ledger(server: Server, folder: Path) -> None:
    # A process may outlive the program, and the folder with it.
    with contextlib.suppress(OSError):
        write_whole(folder / f"{os.getpid()}.json", server.ledger().to_bytes())


def opened(bundle: str | os.PathLike[str] | Bundle) -> Bundle:
    """A bundle by its directory, or by its name if it is installed."""
    if isinstance(bundle, Bundle):
        return bundle
    text = os.fspath(bundle)
    return open_bundle(text) if not isinstance(bundle, str) or is_directory(text) else open_installed(text)


def is_directory(bundle: str) -> bool:
    """Whether a text is the directory of a bundle, and not the name of an installed one."""
    return os.sep in bundle or (Path(bundle) / MANIFEST_NAME).exists()


class Server:
    """Answers ``cute.compile`` from ``bundles``, in this order; made by :func:`serve`. Thread-safe.

    ``keeper``, if set, keeps what is compiled under policies ``warn`` and ``jit``.
    """

    def __init__(self) -> None:
        self.bundles: tuple[Bundle, ...] = ()
        self.keeper: Keeper | None = None
        self._ledger = Ledger()
        # The parent writes its own entries, and another thread of it may hold the lock.
        os.register_at_fork(after_in_child=self._renew_ledger)
        self._surroundings = Surroundings(self._device, known_variables, self._dsl)
        self._devices: dict[str, Mapping[str, int]] = {}
        self._interception = Interception(self._answer)
        self._hardware = AfterImport({"cutlass.utils.hardware_info": self._answer_hardware})

    def begin(self) -> None:
        """Intercept ``cute.compile``."""
        self._interception.begin()
        self._hardware.begin()
        without_dsl.take_fingerprint(self._bundles_dsl)

    def forget_devices(self) -> None:
        """Look the GPU's numbers up again when they are needed: new bundles may have its profile."""
        self._devices.clear()

    def _renew_ledger(self) -> None:
        self._ledger = Ledger()

    def ledger(self) -> Ledger:
        """The requests answered and missed so far, and those in the bundles that nobody made."""
        held = {digest for bundle in self.bundles for digest in bundle.requests.digests()}
        return self._ledger.with_unused(held)

    def request(
        self, compiler: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], *, direct: bool = False
    ) -> Request:
        """The request of a call of ``cute.compile``, or of a direct call; RequestError if it makes none."""
        return request_of(compiler, arguments, keywords, self._surroundings, direct=direct)

    def find(self, request: Request) -> Any | None:
        """The prebuilt function for a request, called as the compiled one is; None if no bundle has it."""
        found = self._found(request)
        return None if found is None else as_requested(request, found[1].function)

    def _found(self, request: Request) -> tuple[Bundle, CompiledFunction] | None:
        for bundle in self.bundles:
            found = bundle.compiled(request)
            if found is not None:
                return bundle, found
        return None

    def _answer(
        self, compiler: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], compile: Compile
    ) -> Any:
        start = time.perf_counter()
        try:
            request = self.request(compiler, arguments, keywords, direct=compile.direct)
        except RequestError as error:
            return self._missed(None, error, arguments, keywords, compile)
        found = self._found(request)
        if found is not None:
            bundle, compiled = found
            code_bytes = compiled.kernel.entry.code.size
            self._ledger.answered(request, bundle.name, code_bytes, time.perf_counter() - start)
            return as_requested(request, compiled.function)
        return self._missed(
            request, RequestNotFound(explain_miss(request, self.bundles)), arguments, keywords, compile
        )

    def _missed(
        self,
        request: Request | None,
        error: CutlassAotError,
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
        compile: Compile,
    ) -> Any:
        chosen = policy.get()
        name = request.callable if request is not None else str(error).partition(":")[0]
        policy.count_miss(name if request is None else f"{name} for {request.target}")
        # A direct call is missed each time, and compiled the first.
        is_new = not (compile.direct and self._ledger.has_missed(request, str(error)))
        if is_new:
            _log.warning("policy %s: %s", chosen, error)
        if chosen == "required":
            self._ledger.missed(request, str(error), 0.0)
            raise error
        if chosen == "warn" and is_new:
            # The line of the program: the DSL's own function is between it and what intercepts a direct call.
            line = 5 if compile.direct else 4
            warnings.warn(f"{error}; it is compiled now (policy warn)", CompileWarning, stacklevel=line)
        start = time.perf_counter()
        if request is not None and self.keeper is not None:
            compiled = self.keeper.compile(request, arguments, keywords, compile)
        else:
            compiled = compile.leave(*arguments, **keywords)
        seconds = time.perf_counter() - start
        self._ledger.missed(request, str(error), seconds)
        if is_new:
            _log.warning("compiled %s in %.1f s", name, seconds)
        return compiled

    def _device(self, target: str) -> Mapping[str, int]:
        """The GPU's numbers, from the bundles' profile for the target whose SM count agrees with it."""
        known = self._devices.get(target)
        if known is None:
            profiles = self._profiles(target)
            count = sm_count_at_hand()
            fitting = [profile for profile in profiles if count in (None, profile.get("sm_count"))]
            known = fitting[0] if fitting else {"sm_count": count or 0}
            self._devices[target] = known
        return known

    def _dsl(self) -> str:
        """The fingerprint of the imported DSL; without it, of the DSL that the bundles were built with."""
        return without_dsl.fingerprint() if without_dsl.is_active() else dsl_fingerprint()

    def _bundles_dsl(self) -> str:
        """The fingerprint of the DSL in the first bundle that has requests; empty if none has."""
        for bundle in self.bundles:
            for request in bundle.requests.requests():
                return request.code[DSL]
        return ""

    def _profiles(self, target: str) -> list[Mapping[str, int]]:
        """The device numbers that requests for a target were recorded with: one set for each bundle."""
        found = []
        for bundle in self.bundles:
            for request in bundle.requests.requests():
                if request.target == target and request.device not in found:
                    found.append(request.device)
                    break
        return found

    def _answer_hardware(self, module: ModuleType) -> None:
        """Make the DSL take cluster counts from the profile: it would compile a kernel to ask the driver."""
        kind = module.HardwareInfo
        original = kind.get_max_active_clusters

        def get_max_active_clusters(self_: Any, cluster_size: int, *more: Any, **named: Any) -> int:
            target = str(sys.modules["cutlass.base_dsl.dsl"].BaseDSL._get_dsl().envar.arch)
            count = self._device(target).get(f"max_active_clusters_{cluster_size}")
            if count is None or more or named.get("stream") is not None:
                return int(original(self_, cluster_size, *more, **named))
            return count

        kind.get_max_active_clusters = get_max_active_clusters
