"""Recordings that a manifest names: files with requests, and with what they compiled to on a GPU."""

from __future__ import annotations

from cutlass_aot.builder.inputs.inputs import Inputs
from cutlass_aot.builder.programs.record import Recorded, kernel_key
from cutlass_aot.errors import ManifestError, ProgramError
from cutlass_aot.manifest.programs import RecordingTable
from cutlass_aot.programs.describe.distributions import DSL
from cutlass_aot.programs.start.files import read_whole
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.requests.recording import MAX_RECORDING_BYTES, recording_from_bytes
from cutlass_aot.schema.requests.request import Request
from cutlass_aot.store.artifacts import keep_artifact, read_artifact
from cutlass_aot.store.store import Store


def take_recordings(inputs: Inputs, store: Store | None) -> list[Recorded]:
    """Read the recordings that a manifest names, and put their objects into the store.

    With None for the store, only the requests are read.
    """
    return [_taken(table, inputs, store) for table in inputs.manifest.recordings]


def _taken(table: RecordingTable, inputs: Inputs, store: Store | None) -> Recorded:
    path = inputs.manifest.path.parent / table.file
    try:
        data = read_whole(path, MAX_RECORDING_BYTES)
    except OSError as error:
        raise ProgramError(f"{table.where}: {path} cannot be read: {error.strerror or error}") from None
    inputs.files.digest(path)
    recording, objects = recording_from_bytes(data, str(path))
    version = inputs.tools.compiler.versions[DSL]
    for item in recording.requests:
        request = item.request
        if request.target not in inputs.manifest.targets:
            raise ManifestError(
                f"{table.where}: {path} has kernels for {request.target}: expected some of the bundle's "
                f"targets, {', '.join(inputs.manifest.targets)}"
            )
        theirs = request.distributions.get(DSL, "")
        if theirs != version:
            raise ManifestError(
                f"{table.where}: {path} was made with {DSL} {theirs}, here is {version}: make it again, or "
                "install that release"
            )
        if store is not None:
            _adopt(request, objects[request.digest], inputs, store)
    return Recorded(f"{table.where} ({table.file})", recording)


def _adopt(request: Request, data: bytes, inputs: Inputs, store: Store) -> None:
    """Put an object of a recording into the store if it is what its request says."""
    # Imported here because only a build with recordings needs it.
    from cutlass_aot.builder.compile.audit import audit, inspect_object

    kernel, name = request.kernel, kernel_key(request, inputs)
    if read_artifact(store, name, kernel)[0] is not None:
        return
    inspection = inspect_object(data)
    audit(inspection, kernel.target, kernel.symbol)
    artifact = Artifact(digest(data), len(data), inspection.facts, 0.0)
    with store.workspace() as workspace:
        file = workspace / f"{request.digest}.object"
        file.write_bytes(data)
        keep_artifact(store, name, kernel, artifact, file)
