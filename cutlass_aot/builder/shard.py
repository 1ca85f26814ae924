"""A shard: a part of a build's kernels, compiled on one of several machines, to be merged later.

A shard is a store in a directory of its own, with the objects of its kernels and, written last, a record that
describes the whole bundle. All shards of a bundle have the same record: a merge needs no manifest, no
generator and no DSL.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cutlass_aot.builder.plan.plan import kernel_keys
from cutlass_aot.builder.plan.recipe import PlannedBundle
from cutlass_aot.bundle.replace import check_folder, swap_in
from cutlass_aot.errors import BundleError, CorruptFile, StoreError
from cutlass_aot.runtime.files.temporary_folder import temporary_folder
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.encoding import MALFORMED, digest
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.store.artifacts import copy_artifact, read_artifact
from cutlass_aot.store.store import Store

_KEY = digest(b"shard")
_TEXT = re.compile(r"([0-9]{1,6})/([0-9]{1,6})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of a build: ``index`` of ``count``, from 1."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Share:
        """Read a text such as ``3/16``; raises ValueError for any other."""
        match = _TEXT.fullmatch(text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ValueError(f"{text!r}: expected a number, from 1, and how many there are, such as 3/16")
        return cls(int(match[1]), int(match[2]))

    def of(self, keys: Sequence[str]) -> frozenset[str]:
        """The keys of this share. Each key is in exactly one share; their sizes differ by one at most."""
        return frozenset(sorted(keys)[self.index - 1 :: self.count])

    def directory(self, name: str) -> str:
        """Name of the shard's directory."""
        return f"{name}.shard-{self.index}-of-{self.count}"


@dataclass(frozen=True, slots=True)
class Shard:
    """One part of the bundle ``planned``, in the directory ``path``."""

    share: Share
    planned: PlannedBundle
    path: Path

    @property
    def kernels(self) -> list[tuple[str, Kernel]]:
        """The kernels of its share, with their keys."""
        share = self.share.of(self.planned.keys)
        pairs = zip(self.planned.keys, self.planned.selection.kernels, strict=True)
        return [(key, kernel) for key, kernel in pairs if key in share]


def write_shard(shard: Shard, artifacts: Mapping[str, Artifact], store: Store) -> None:
    """Write a shard's directory under another name, and move it to its path when complete.

    A shard at that path is replaced; it stays if that fails. ``artifacts`` are by key, of at least this
    share's kernels; the store has their objects.
    """
    path = shard.path.absolute()
    # Not in the temporary folder, which is removed whatever happens.
    old = path.with_name(f".{path.name}.replaced")
    _recover(path, old)
    check_shard_output(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(beside=path) as folder:
            made = folder / "new"
            _fill(Store(made), shard, artifacts, store)
            swap_in(made, path, old)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, StoreError) as error:
        raise _not_written(path, error) from None


def _recover(path: Path, old: Path) -> None:
    """Put back the shard that a killed writer had moved aside, or remove it if there is a new one."""
    try:
        if old.is_dir() and not os.path.lexists(path):
            old.rename(path)
    except OSError as error:
        raise _not_written(path, error) from None
    shutil.rmtree(old, ignore_errors=True)


def check_shard_output(path: Path) -> None:
    """Raise at once if :func:`write_shard` would not replace what is at ``path``, or cannot write there."""
    try:
        if path.exists() and any(path.iterdir()):
            Store(path, create=False)
        check_folder(path.absolute().parent)
    except (OSError, StoreError) as error:
        raise _not_written(path, error) from None


def _not_written(path: Path, error: Exception) -> BundleError:
    return BundleError(f"the shard {path} cannot be written: {error}")


def _fill(own: Store, shard: Shard, artifacts: Mapping[str, Artifact], store: Store) -> None:
    """Write objects and their records first, and the shard's record last."""
    for key, kernel in shard.kernels:
        copy_artifact(store, own, key, kernel, artifacts[key])
    own.put_record("shard", _KEY, {**to_plain(shard.share), **to_plain(shard.planned)})


def read_shard(path: Path) -> Shard:
    """Read a shard's record; its objects are not looked at."""
    try:
        record = Store(path, create=False).get_record("shard", _KEY)
    except StoreError as error:
        raise BundleError(f"{path} is not a shard: {error}") from None
    if record is None:
        raise BundleError(f"{path} is not a complete shard: build it again with `cutlass-aot build --shard`")
    try:
        share = Share.parse(f"{record.pop('index')}/{record.pop('count')}")
        return Shard(share, from_plain(PlannedBundle, record, "a planned bundle"), path)
    except (*MALFORMED, CorruptFile) as error:
        raise BundleError(f"{path}: the shard's record is malformed ({error}): build it again") from None


def take_artifacts(
    shard: Shard, store: Store, add: Callable[[Kernel, str, bool], None]
) -> dict[str, Artifact]:
    """Copy a shard's objects into a store; returns their artifacts by key.

    ``add`` is called with each kernel and the digest of its object once the store has it, and whether it is
    new there.
    """
    own, taken = Store(shard.path, create=False), {}
    for key, kernel in shard.kernels:
        artifact, why = read_artifact(own, key, kernel)
        if artifact is None:
            raise BundleError(f"{shard.path}: {kernel.name}: {why}: build this shard again")
        fresh = not store.has_record("kernel", key)
        copy_artifact(own, store, key, kernel, artifact)
        add(kernel, artifact.object_sha256, fresh)
        taken[key] = artifact
    return taken


def check_whole(shards: Sequence[Shard]) -> None:
    """Refuse shards unless they are all the shards of one bundle."""
    if not shards:
        raise BundleError("there is nothing to merge: name the directories of all shards of a bundle")
    first = shards[0]
    planned, origins = first.planned, first.planned.origins
    # Objects are looked up by key: a wrong key would put a wrong object into the store.
    if kernel_keys(planned.selection, origins.generators, origins.toolchain) != planned.keys:
        raise BundleError(f"{first.path}: its keys are not those of its kernels: build this shard again")
    for shard in shards[1:]:
        what = f"{shard.path} and {first.path} are not of one build"
        if shard.share.count != first.share.count:
            raise BundleError(
                f"{what}: one is of {shard.share.count} shards, the other of {first.share.count}"
            )
        if shard.planned.digest != planned.digest:
            raise BundleError(f"{what}: {_difference(shard.planned, planned)}")
    indices = [shard.share.index for shard in shards]
    twice = sorted({index for index in indices if indices.count(index) > 1})
    if twice:
        raise BundleError(f"shard {twice[0]} of {first.share.count} is given twice: name each once")
    missing = sorted(set(range(1, first.share.count + 1)) - set(indices))
    if missing:
        raise BundleError(
            f"of {first.share.count} shards of {planned.recipe.name} these are missing: "
            f"{', '.join(map(str, missing))}"
        )


def _difference(one: PlannedBundle, other: PlannedBundle) -> str:
    """How two shards of different builds differ, in words."""
    versions, others = one.origins.versions, other.origins.versions
    for name in sorted({*versions, *others}):
        if versions.get(name) != others.get(name):
            return f"{name} {versions.get(name, 'none')} built one, {others.get(name, 'none')} the other"
    if one.recipe != other.recipe:
        return "their manifests name different bundles, versions, targets, hosts or tuning files"
    if one.selection != other.selection:
        return "they were planned from different manifests"
    return "they were built with different toolchains"
