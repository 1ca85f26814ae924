"""Fill a shared directory with a bundle's GPU code, before anything is launched: for images and nodes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from cutlass_aot.errors import BundleError
from cutlass_aot.runtime import cache
from cutlass_aot.runtime.code import Code
from cutlass_aot.runtime.files import read_catalog


class Filled(NamedTuple):
    """What a directory has of a bundle.

    Attributes:
        directory: what ``CUTLASS_AOT_CACHE`` is to name.
        files: files of GPU code, all that the bundle has.
        size: bytes of them.
    """

    directory: Path
    files: int
    size: int


def prefill(bundle: Path, directory: Path | None = None) -> Filled:
    """Unpack all GPU code of a bundle that is not in a shared directory yet.

    Args:
        bundle: its directory; what is taken is verified. Neither its host nor its targets matter.
        directory: filled, and made readable for everybody; None for the one that this user's processes
            share.

    Raises:
        BundleError: if there is no bundle, or the directory cannot be written or may not hold that much.
        CorruptFile: if a file is not what its digest says.
    """
    folder = directory or cache.directory()
    if folder is None:
        raise BundleError(f"{cache.state().problem}: name a directory to fill")
    codes = dict.fromkeys(entry.code for entry in read_catalog(bundle).groups)
    paths = [Code(bundle, reference).fill(folder) for reference in codes]
    try:
        sizes = [path.stat().st_size for path in paths]
        if directory is not None:
            directory.chmod(directory.stat().st_mode | 0o555)
            for path in paths:
                path.chmod(path.stat().st_mode | 0o444)
    except FileNotFoundError as error:
        raise BundleError(
            f"{error.filename} was removed again: {folder} holds at most {cache.limit()} bytes, the bundle "
            f"needs more; {cache.LIMIT_VARIABLE} sets another limit"
        ) from None
    except OSError as error:
        raise BundleError(f"cannot make {folder} readable: {error.strerror or error}") from None
    return Filled(folder, len(paths), sum(sizes))
