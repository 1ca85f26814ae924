"""Final sizes of a bundle: whole, as a wheel, and by kernel."""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cutlass_aot.bundle.wheel.catalog import ZIP_ERRORS
from cutlass_aot.diff.listing import bundle_size
from cutlass_aot.errors import CutlassAotError
from cutlass_aot.runtime.bundle import open_bundle
from cutlass_aot.runtime.files.verified_read import manifest_bytes
from cutlass_aot.schema.bundles.catalog import MANIFEST_NAME


@dataclass(frozen=True, slots=True)
class FinalSizes:
    """Bytes of a bundle.

    Attributes:
        bundle: of all its files.
        kernels: digest to the kernel's share of these: packed GPU code by what it takes of its group's,
            everything else in equal parts.
        wheel: the name of a wheel that holds exactly this bundle, and its bytes; None if none is found.
    """

    bundle: int
    kernels: Mapping[str, float]
    wheel: tuple[str, int] | None


def final_sizes(path: Path) -> FinalSizes | None:
    """The sizes of the bundle at ``path``; None if it cannot be opened.

    A wheel of it is looked for in the directory ``wheels`` beside that of bundles, where ``cutlass-aot
    wheel`` puts them.
    """
    try:
        bundle, total = open_bundle(path, check=False), bundle_size(path)
        handles = bundle.kernels()
        unpacked: Counter[str] = Counter()
        for handle in handles:
            unpacked[handle.group.name] += handle.entry.code.size
        shares = {
            handle.digest: handle.group.code.size
            * handle.entry.code.size
            / max(unpacked[handle.group.name], 1)
            for handle in handles
        }
        packed = sum(group.code.size for group in bundle.groups)
        rest = (total - packed) / max(len(shares), 1)
        wheel = _wheel(path.absolute().parent.parent / "wheels", manifest_bytes(path))
    except (CutlassAotError, OSError):
        return None
    return FinalSizes(total, {digest: share + rest for digest, share in shares.items()}, wheel)


def _wheel(folder: Path, manifest: bytes) -> tuple[str, int] | None:
    for path in sorted(folder.glob("*.whl")):
        try:
            with zipfile.ZipFile(path) as archive:
                for item in archive.infolist():
                    its = item.filename.endswith(f"/{MANIFEST_NAME}") and item.file_size == len(manifest)
                    if its and archive.read(item) == manifest:
                        return path.name, path.stat().st_size
        except (OSError, *ZIP_ERRORS):
            continue
    return None
