"""The inputs of a build, with their digests: manifest, device profiles, generators, compiler and linkers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import cutlass_aot
from cutlass_aot.builder import events
from cutlass_aot.builder.compile.pool import Pool
from cutlass_aot.builder.events import Listener
from cutlass_aot.builder.inputs.file_digests import Files, Seen
from cutlass_aot.builder.link.linker import LinkToolchain
from cutlass_aot.builder.plan import plan as planning
from cutlass_aot.builder.plan import rank as ranking
from cutlass_aot.builder.plan.recipe import Origins
from cutlass_aot.builder.records import Sources
from cutlass_aot.builder.toolchain import CompilerToolchain, detect_compiler, own_sources
from cutlass_aot.errors import CorruptFile, ManifestError
from cutlass_aot.generators.device_profiles import DeviceProfile, load_profile
from cutlass_aot.generators.distributions import installed
from cutlass_aot.generators.registry import (
    distribution_digests,
    distributions_of,
    package_folders,
    source_digests,
    source_of,
)
from cutlass_aot.manifest.model import Manifest, load_manifest
from cutlass_aot.schema.codec import codec_of, from_plain, to_plain
from cutlass_aot.schema.encoding import digest, encode
from cutlass_aot.schema.requests.request import GENERATOR, REQUEST_SCHEMA
from cutlass_aot.store.build_state import read_state, write_state

Parts = Mapping[str, Mapping[str, str]]
"""Section to name to digest or version, in the order in which differences are reported."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a build, looked up once.

    Attributes:
        compiler: the DSL.
        own_sources: this package's modules with their digests.
        linkers: by host; empty if nothing is linked.
        generator_sources: the generators' modules with the digests that their versions were made from.
    """

    sources: Sources
    compiler: CompilerToolchain
    own_sources: Mapping[str, str]
    linkers: Mapping[str, LinkToolchain]
    generator_sources: Mapping[str, str]

    @property
    def origins(self) -> Origins:
        """The origins of kernels made with these tools."""
        return Origins(
            generators={**self.sources.versions, GENERATOR: str(REQUEST_SCHEMA)},
            toolchain=self.compiler.fingerprint,
            versions={**self.compiler.versions, "cutlass-aot": cutlass_aot.__version__},
            own_sources=digest(encode(self.own_sources)),
            linkers={host: linker.fingerprint for host, linker in sorted(self.linkers.items())},
            code=self.sources.code,
        )

    @property
    def modules(self) -> tuple[str, ...]:
        """The generators' modules, which a worker has to import."""
        return tuple(sorted({m for g in self.sources.instances.values() for m in g.modules}))

    def pool(self, jobs: int, timeout: float, tell: Listener) -> Pool:
        """A pool of workers on this machine, which starts nothing before there is work."""

        def importing(seconds: float | None) -> None:
            tell(events.Importing() if seconds is None else events.Imported(seconds))

        return Pool(jobs, self.modules, timeout, self.compiler.roots, self.generator_sources, importing)


@dataclass(frozen=True)
class Inputs:
    """A manifest, and what was found for it.

    Attributes:
        devices: target to device profile.
        model: the heuristic that ranks kernels, or None.
        files: the digests of every file that anything here depends on.
    """

    manifest: Manifest
    devices: Mapping[str, DeviceProfile]
    model: ranking.Model | None
    tools: Tools
    files: Files

    @cached_property
    def parts(self) -> Parts:
        """Everything that the selection of kernels depends on."""
        document = dict(self.manifest.document)
        tables = {key: document.pop(key, []) for key in ("kernels", "known_bad")}
        named = {f"[{name}]" if isinstance(value, dict) else name: value for name, value in document.items()}
        named |= {f"{key}[{i}]": table for key, own in tables.items() for i, table in enumerate(own)}
        generators = self.tools.sources.instances
        return {
            "the manifest": {name: digest(encode(value)) for name, value in sorted(named.items())},
            "a file that [select] names": dict(sorted(self.manifest.select.inputs.items())),
            "the device profile": {
                target: digest(encode(to_plain(device))) for target, device in sorted(self.devices.items())
            },
            "a plugin": {module: self._plugin(module) for module in sorted(self.manifest.plugins)},
            "a generator": {
                f"{name}, {what}": value
                for name, generator in sorted(generators.items())
                for what, value in {
                    "version": generator.version,
                    **{
                        f"module {module}": sha256
                        for module, sha256 in source_digests(generator, self.files.digest).items()
                    },
                    **{
                        f"file {file}": sha256
                        for file, sha256 in distribution_digests(generator, self.files.digest).items()
                    },
                }.items()
            },
            "the compiler": self.tools.compiler.identity,
            "the heuristic": dict(self.model.packages) if self.model else {},
            "cutlass-aot": {"version": cutlass_aot.__version__, **self.tools.own_sources},
        }

    @cached_property
    def plan_digest(self) -> str:
        """Digest of :attr:`parts`: the key of the selection in the store."""
        return digest(encode(self.parts))

    @property
    def packages(self) -> set[str]:
        """Folders of the generators' modules and distributions, of plugins, and of this package."""
        own = Path(cutlass_aot.__file__).parent
        folders = {str(path.parent) for path in own.rglob("*.py")}
        for generator in self.tools.sources.instances.values():
            for name in distributions_of(generator):
                folders |= installed(name).folders
        return folders | package_folders({*self.tools.modules, *self.manifest.plugins})

    def _plugin(self, module: str) -> str:
        path = source_of(module)
        return self.files.digest(path) if path else "without a source file"


def load_inputs(manifest_path: Path, store: Path, *, linkers: bool) -> Inputs:
    """Read a manifest, and look at everything that it names and everything that is installed.

    ``store`` is the store's directory, which need not exist; digests of files are remembered there.
    ``linkers`` says whether to look for linkers.
    """
    files = remembered_files(store)
    # Before reading it, so that a change meanwhile makes the next build see a changed manifest.
    files.digest(manifest_path)
    manifest = load_manifest(manifest_path)
    with naming(manifest_path):
        for name in (*manifest.select.inputs, *manifest.devices.values()):
            if name in manifest.select.inputs or name.endswith(".toml"):
                files.digest(manifest_path.parent / name)
        devices = {
            target: load_profile(name, manifest_path.parent) for target, name in manifest.devices.items()
        }
        # First: where nothing of the build side is installed, no generator can say it as well.
        compiler = detect_compiler(files)
        compiler.require(manifest.targets)
        sources = planning.load_sources(manifest, files)
        model = ranking.find_model(manifest, sources, devices)
        tools = _tools(compiler, sources, manifest.hosts if linkers else (), files)
    return Inputs(manifest, devices, model, tools, files)


def load_tools(generators: set[str], hosts: tuple[str, ...], store: Path) -> tuple[Tools, Files]:
    """Find the tools for the kernels of some generators."""
    files = remembered_files(store)
    return _tools(detect_compiler(files), planning.find_sources(generators, files), hosts, files), files


def _tools(compiler: CompilerToolchain, sources: Sources, hosts: tuple[str, ...], files: Files) -> Tools:
    linkers = {host: LinkToolchain.detect(host) for host in hosts}
    for linker in linkers.values():
        files.digest(linker.zig)
    # Files that add to the search path, and editable installations, whose folders are elsewhere.
    for folder in filter(None, sys.path):
        for path in (*Path(folder).glob("*.pth"), *Path(folder).glob("__editable__*")):
            files.digest(path)
    generators = sources.instances.values()
    modules = {m: sha256 for g in generators for m, sha256 in source_digests(g, files.digest).items()}
    return Tools(sources, compiler, own_sources(files), linkers, modules)


@contextmanager
def naming(manifest_path: Path) -> Iterator[None]:
    """Begin the messages of manifest errors raised inside with the manifest's path."""
    try:
        yield
    except ManifestError as error:
        message = str(error)
        named = message.startswith(f"{manifest_path}: ")
        raise ManifestError(message if named else f"{manifest_path}: {message}") from None


def remembered_files(store: Path) -> Files:
    """Digests of files that earlier builds from this environment kept; empty if there are none."""
    try:
        return Files(from_plain(dict[str, Seen], read_state(store, _files_state()), "build state"))
    except CorruptFile:
        return Files()


def remember_files(store: Path, files: Files) -> None:
    """Keep digests for the next build."""
    if files.changed():
        write_state(store, _files_state(), codec_of(dict[str, Seen]).to_plain(files.used))


def _files_state() -> str:
    return digest(encode({"what": "files", "prefix": sys.prefix, "package": os.fspath(cutlass_aot.__file__)}))
