"""The caches that come with the suite: ours, those of two packages, one that forgets, and what is really
compiled."""

from __future__ import annotations

import hashlib
import importlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.check.cache_conformance.protocol import SM_COUNT, Cache, Outcome, interrupted

_ARGUMENTS_ONLY = {
    "symbols": "its callers make the tensors inside the function that is cached",
    "option": "its callers write the options inside the function that is cached",
    "option order": "its callers write the options inside the function that is cached",
    "raw address": "its callers make the pointers inside the function that is cached",
    "dynamic scalar": "its callers make the scalars inside the function that is cached",
}


class CutlassAot:
    """Requests of cutlass-aot: keys alone, or the recorder and a store where entries are looked at."""

    name = "cutlass-aot"
    environment: Mapping[str, str] = {}
    modules: Sequence[str] = (
        "cutlass_aot.programs.record.record",
        "cutlass_aot.builder.programs.compile_request",
    )
    distributions: Sequence[str] = ("cutlass-aot",)
    not_applicable: Mapping[str, str] = {}

    def prepare(self, directory: Path, program: Path, *, entries: bool) -> None:
        self._directory = directory
        self._entries = entries

    def compile(
        self, function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Outcome:
        from cutlass_aot.errors import RequestError
        from cutlass_aot.programs.describe.request import Surroundings, request_of
        from cutlass_aot.programs.record.record import Nothing
        from cutlass_aot.programs.start.interception import Interception
        from cutlass_aot.programs.start.packages import known_variables

        outcome: list[Outcome] = []

        def answer(compiler: Any, values: Sequence[Any], named: Mapping[str, Any], compile: Any) -> Any:
            surroundings = Surroundings(lambda target: _device(), known_variables)
            try:
                request = request_of(compiler, values, named, surroundings)
            except RequestError as error:
                print(error)
                outcome.append("refused")
                return Nothing()
            keep = self._recorded if self._entries else self._noted
            outcome.append(keep(request, compiler, values, named, compile))
            return Nothing()

        interception = Interception(answer)
        interception.begin()
        try:
            function(*arguments, **keywords)
        finally:
            interception.end()
        return outcome[0]

    def _noted(self, request: Any, *_call: Any) -> Outcome:
        path = self._directory / request.digest
        if path.exists():
            return "hit"
        path.touch()
        return "miss"

    def _recorded(self, request: Any, compiler: Any, values: Any, named: Any, compile: Any) -> Outcome:
        """As a build does: a private folder for what a run finds, then the store."""
        from cutlass_aot.builder.programs.record import COMPILER
        from cutlass_aot.programs.record.record import Recorder
        from cutlass_aot.programs.start.files import RequestResult
        from cutlass_aot.schema.codec import from_plain
        from cutlass_aot.schema.encoding import decode
        from cutlass_aot.store.artifacts import keep_artifact, read_artifact
        from cutlass_aot.store.store import Store

        store = Store(self._directory / "store")
        artifact, _ = read_artifact(store, request.kernel.digest, request.kernel)
        if artifact is not None and store.get_blob(artifact.object_sha256) is not None:
            return "hit"
        with tempfile.TemporaryDirectory() as folder:
            recorder = Recorder(Path(folder), _device(), frozenset(), COMPILER, 1, 120.0)
            recorder.answer(compiler, values, named, compile)
            recorder.finish()
            path = Path(folder, f"{request.digest}.result")
            result = from_plain(RequestResult, decode(path.read_bytes(), path.name), path.name)
            made = path.with_suffix(".object")
            keep_artifact(store, request.kernel.digest, request.kernel, result.artifact, made)
        return "miss"


def _device() -> dict[str, int]:
    return {"sm_count": int(os.environ[SM_COUNT])}


class Quack:
    """``quack.cache.jit_cache``, which keys the arguments of the function that it decorates.

    The program's directory is one of ``EXTRA_SOURCE_DIRS``, as quack asks of projects that build on it.
    """

    name = "quack"
    environment: Mapping[str, str] = {"QUACK_CACHE_ENABLED": "1"}
    modules: Sequence[str] = ("quack.cache",)
    distributions: Sequence[str] = ("quack-kernels",)
    not_applicable: Mapping[str, str] = _ARGUMENTS_ONLY

    def prepare(self, directory: Path, program: Path, *, entries: bool) -> None:
        package = importlib.import_module("quack.cache")
        package.CACHE_DIR = str(directory)  # type: ignore[attr-defined]
        package.EXTRA_SOURCE_DIRS.append(program)
        self._cached: dict[Any, Any] = {}

    def compile(
        self, function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Outcome:
        cached = self._cached.get(function)
        if cached is None:
            cached = self._cached[function] = importlib.import_module("quack.cache").jit_cache(function)
        before = cached.cache_info().misses
        cached(*arguments, **keywords)
        return "miss" if cached.cache_info().misses > before else "hit"


class FlashAttention4:
    """``flash_attn.cute.cache_utils.get_jit_cache``: a dictionary on disk, whose keys its callers make.

    Keys are made as ``flash_attn.cute.interface`` makes them: plain arguments, ``hash_callable`` of functions
    (``score_mod``, ``mask_mod``), and the architecture.
    """

    name = "flash-attn-4"
    environment: Mapping[str, str] = {"FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1"}
    modules: Sequence[str] = ("flash_attn.cute.cache_utils", "flash_attn.cute.utils")
    distributions: Sequence[str] = ("flash-attn-4",)
    not_applicable: Mapping[str, str] = _ARGUMENTS_ONLY

    def prepare(self, directory: Path, program: Path, *, entries: bool) -> None:
        module: Any = importlib.import_module("flash_attn.cute.cache_utils")
        module.CUTE_DSL_CACHE_DIR = str(directory)
        self._cache = module.get_jit_cache("conformance")

    def compile(
        self, function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Outcome:
        utils: Any = importlib.import_module("flash_attn.cute.utils")
        target = os.environ["CUTE_DSL_ARCH"]
        values = [*arguments, *sorted(keywords.items())]
        own = [utils.hash_callable(value) if _is_function(value) else value for value in values]
        key = (function.__qualname__, *own, int(target.removeprefix("sm_").rstrip("af")))
        if key in self._cache:
            return "hit"
        self._cache[key] = function(*arguments, **keywords)
        return "miss"


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


class Forgetful:
    """A cache that is wrong on purpose: its key is the function's name, its entries are written in place.

    Every hazard that asks for two keys has to fail for it, or tests nothing.
    """

    name = "none-forgets"
    environment: Mapping[str, str] = {}
    modules: Sequence[str] = ()
    distributions: Sequence[str] = ()
    not_applicable: Mapping[str, str] = {}

    def prepare(self, directory: Path, program: Path, *, entries: bool) -> None:
        self._directory = directory
        self._pause = 1.0 if entries else 0.0

    def compile(
        self, function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Outcome:
        path = self._directory / function.__qualname__
        if path.exists():
            return "hit"
        time.sleep(self._pause)  # Where another cache compiles.
        with path.open("x", encoding="utf-8") as file:
            file.write("what would have been compiled\n")
        interrupted(path)
        return "miss"


class Compiled:
    """No cache, but what is compiled: calls share an entry if their code is equal, names left out.

    A hazard that fails here does not do what it says.
    """

    name = "compiled"
    environment: Mapping[str, str] = {}
    modules: Sequence[str] = ("cutlass_aot.builder.compile.export", "cutlass_aot.builder.compile.audit")
    distributions: Sequence[str] = ("nvidia-cutlass-dsl",)
    not_applicable: Mapping[str, str] = dict.fromkeys(
        ("killed writer", "damaged entry", "two writers"), "nothing is kept"
    )

    def prepare(self, directory: Path, program: Path, *, entries: bool) -> None:
        self._directory = directory

    def compile(
        self, function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Outcome:
        from tools.check.cache_conformance.code import code_without_names

        code = code_without_names(function(*arguments, **keywords))
        path = self._directory / hashlib.sha256(code).hexdigest()
        if path.exists():
            return "hit"
        path.write_bytes(code)
        return "miss"


CACHES: Mapping[str, Callable[[], Cache]] = {
    "cutlass-aot": CutlassAot,
    "quack": Quack,
    "flash-attn-4": FlashAttention4,
    "none-forgets": Forgetful,
    "compiled": Compiled,
}


def cache_named(name: str) -> Cache:
    """A cache by its name, or by ``module:attribute``.

    Raises:
        KeyError: if there is none of this name.
    """
    module, _, attribute = name.partition(":")
    made: Callable[[], Cache] = (
        getattr(importlib.import_module(module), attribute) if attribute else CACHES[name]
    )
    return made()
