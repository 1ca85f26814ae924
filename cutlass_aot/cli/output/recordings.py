"""Write what a program compiled on a GPU as recordings, and a manifest that names them."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cutlass_aot.cli.output.terminal import say
from cutlass_aot.errors import ManifestError
from cutlass_aot.schema.requests.recording import RECORDING_KIND
from cutlass_aot.schema.words import plural

if TYPE_CHECKING:
    from cutlass_aot.schema.requests.request import Request

SUFFIX = ".recording"
_TAIL_BYTES = 256
_BEGINS = b"# Written by cutlass-aot: "


def check_output(output: Path, name: str) -> None:
    """Refuse, before the program runs, a bundle's name or files that could not be written after it."""
    from cutlass_aot.manifest.model import check_name

    check_name(name)
    if output.suffix == SUFFIX:
        raise ManifestError(f"{output}: expected a manifest, such as {output.with_suffix('.toml')}")
    if output.exists() and not _head(output).startswith(_BEGINS):
        raise ManifestError(f"{output} is not a manifest that cutlass-aot has written: name another file")
    for path in (_recording(output, 0), *sorted(output.parent.glob(f"{glob.escape(output.stem)}-*{SUFFIX}"))):
        if path.exists() and RECORDING_KIND.encode() not in _tail(path):
            raise ManifestError(f"{path} is not a recording, and would be replaced: name another manifest")
    if not output.parent.is_dir() or not os.access(output.parent, os.W_OK):
        raise ManifestError(
            f"{output}: {output.parent} is not a folder that can be written to: make it, or name another one"
        )


def _head(path: Path) -> bytes:
    """The first bytes of a regular file; nothing of any other."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(len(_BEGINS))


def _tail(path: Path) -> bytes:
    """The last bytes of a regular file, which name the kind of a sealed one; nothing of any other."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return file.read(_TAIL_BYTES)


def _recording(output: Path, index: int) -> Path:
    number = f"-{index + 1}" if index else ""
    return output.with_name(f"{output.stem}{number}{SUFFIX}")


def write_recording(found: Path, output: Path, name: str, program: Sequence[str]) -> int:
    """Write what a program's processes kept, and a manifest; nothing if they kept nothing.

    ``found`` is the folder of what they kept. Recordings go beside the manifest, which names ``program`` in a
    comment. Returns how many requests were kept.
    """
    from cutlass_aot.programs.record.keep import gathered
    from cutlass_aot.schema.requests.recording import recording_to_bytes

    files: list[Path] = []
    requests: list[Request] = []
    for recording, objects in gathered(found):
        for reason in recording.refusals:
            say(f"note: not recorded: {reason}", err=True)
        if recording.requests:
            files.append(_recording(output, len(files)))
            requests += [item.request for item in recording.requests]
            # Moved into place once all are written: until then an existing manifest names the existing ones.
            _write(recording_to_bytes(recording, objects), found / files[-1].name)
    if not files:
        return 0
    for file in files:
        _write((found / file.name).read_bytes(), file)
    targets = sorted({request.target for request in requests})
    text = _manifest(program, name, targets, [file.name for file in files])
    _write(text.encode("utf-8", "backslashreplace"), output)
    places = ", ".join(map(str, files))
    say(f"{output}: {plural(len(requests), 'request')} for {', '.join(targets)}, in {places}")
    say(f"next: cutlass-aot build {output}")
    return len(requests)


def _manifest(program: Sequence[str], name: str, targets: Sequence[str], files: Sequence[str]) -> str:
    words = json.dumps(" ".join(program))
    return "\n".join(
        [
            f"{_BEGINS.decode()}what {words} compiled.",
            "[bundle]",
            f"name = {json.dumps(name)}",
            'version = "0.1.0"',
            f"targets = {json.dumps(list(targets))}",
            "",
            *(line for file in files for line in ("[[recordings]]", f"file = {json.dumps(file)}", "")),
        ]
    )


def _write(data: bytes, path: Path) -> None:
    """Replace a file atomically: a reader sees the old content or all of the new."""
    from cutlass_aot.store.files import publish

    publish(data, path)
