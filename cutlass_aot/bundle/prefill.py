"""Fill a shared directory with a bundle's GPU code before anything is launched, for images and nodes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from cutlass_aot.errors import BundleError, CorruptFile
from cutlass_aot.runtime.launching import code_cache, unpacking
from cutlass_aot.runtime.launching.gpu_code import Code
from cutlass_aot.runtime.opened.bundle_directory import open_directory
from cutlass_aot.schema.bundles.catalog import FileReference
from cutlass_aot.schema.bundles.group_index import CodeSpan
from cutlass_aot.schema.compression import Unpacking


class Filled(NamedTuple):
    """A directory, to be named by ``CUTLASS_AOT_CACHE``, with all GPU code of a bundle.

    ``files`` is the number of files of code, ``size`` their bytes.
    """

    directory: Path
    files: int
    size: int


def prefill(bundle: Path, directory: Path | None = None) -> Filled:
    """Unpack all GPU code of a bundle, verified, that a shared directory lacks or has damaged.

    The bundle's hosts and targets do not matter. ``directory`` and the files are made readable by everybody,
    and it is filled without a limit; None stands for the directory that this user's processes share.
    """
    folder = directory or code_cache.directory()
    if folder is None:
        raise BundleError(f"{unpacking.state().problem}: name a directory to fill")
    opened = open_directory(bundle)
    spans: dict[FileReference, list[CodeSpan]] = {}
    for entry in opened.catalog.groups:
        spans.setdefault(entry.code, []).extend(kernel.code for kernel in opened.group(entry).index)
    bound = Unpacking(sum(reference.size for reference in spans))
    for reference, own in spans.items():
        try:
            bound.take(max((span.offset + span.size for span in own), default=0))
        except CorruptFile as error:
            raise CorruptFile(
                f"{bundle / reference.path}: {error}: build or fetch the bundle again"
            ) from None
    most = unpacking.limit() if directory is None else None
    if directory is not None:
        try:
            _make(directory)
        except OSError as error:
            raise BundleError(
                f"cannot unpack into {directory}: {error.strerror or error}: name a directory with room"
            ) from None
    paths = [Code(bundle, reference).fill(folder, own, most) for reference, own in spans.items()]
    try:
        sizes = [path.stat().st_size for path in paths]
        if directory is not None:
            for path in paths:
                path.chmod(path.stat().st_mode | 0o444)
    except FileNotFoundError as error:
        raise BundleError(
            f"{error.filename} was removed again: {folder} holds at most {unpacking.limit()} bytes, the "
            f"bundle needs more; {unpacking.LIMIT_VARIABLE} sets another limit"
        ) from None
    except OSError as error:
        raise BundleError(
            f"cannot let others read what is in {folder}: {error.strerror or error}: name another directory"
        ) from None
    return Filled(folder, len(paths), sum(sizes))


def _make(directory: Path) -> None:
    """Make a directory that others can read, whatever the umask; an existing one stays as it is."""
    made = []
    while not directory.is_dir():
        made.append(directory)
        directory = directory.parent
    for folder in reversed(made):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
