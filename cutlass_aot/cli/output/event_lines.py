"""Events of a build as JSON, one a line on standard output, for scripts and CI."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

from cutlass_aot.builder import events
from cutlass_aot.builder.events import Event
from cutlass_aot.cli.output.terminal import say
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.kernels.kernel import Kernel

NAMES: dict[type[Event], str] = {
    events.Enumerating: "enumerating",
    events.Importing: "importing",
    events.Imported: "imported",
    events.Ranking: "ranking",
    events.Running: "running",
    events.Recording: "recording",
    events.Ran: "ran",
    events.Planned: "planned",
    events.UpToDate: "up_to_date",
    events.Started: "started",
    events.Compiled: "compiled",
    events.Shared: "shared",
    events.Failed: "failed",
    events.Linking: "linking",
    events.Linked: "linked",
    events.Notice: "notice",
    events.Finished: "finished",
}
"""The field ``event`` for each type of event."""


class EventLines:
    """Prints every event as one JSON object on a line of its own, with sorted keys."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._keys: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        """Print an event; ``at`` is seconds since the build began."""
        if isinstance(event, events.Planned):
            self._keys = {item.kernel.digest: item.key for item in event.kernels}
        fields = self._fields(event)
        line = {"event": NAMES[type(event)], "at": round(time.monotonic() - self._begin, 3), **fields}
        say(json.dumps(line, sort_keys=True))

    def _fields(self, event: Event) -> dict[str, Any]:
        match event:
            case events.Planned(kernels, warnings):
                before = event.failed_before
                present = len(kernels) - event.missing - before
                counts = {"kernels": len(kernels), "missing": event.missing, "present": present}
                return {**counts, "failed_before": before, "warnings": list(warnings)}
            case events.Imported(seconds):
                return {"seconds": round(seconds, 3)}
            case events.Started(kernel):
                return self._kernel(kernel)
            case events.Compiled(kernel, artifact) | events.Shared(kernel, artifact):
                return {**self._kernel(kernel), **_artifact(artifact)}
            case events.Failed(failure):
                reason = {"reason": failure.headline, "detail": failure.detail, "log": str(failure.log)}
                return {**self._kernel(failure.kernel), **reason, "before": failure.before}
            case events.Linked(library, kernels, size, seconds, host):
                seconds = None if seconds is None else round(seconds, 3)
                linked = {"library": library, "host": host, "kernels": kernels}
                return {**linked, "bytes": size, "seconds": seconds}
            case events.Finished():
                return {**asdict(event), "bundle": str(event.bundle)}
            case _:
                return asdict(event)

    def _kernel(self, kernel: Kernel) -> dict[str, Any]:
        return {"kernel": kernel.name, "key": self._keys.get(kernel.digest)}


def _artifact(artifact: Artifact) -> dict[str, Any]:
    facts = artifact.facts
    return {
        "seconds": round(artifact.seconds, 3),
        "bytes": artifact.object_bytes,
        "registers": facts.registers,
        "spill_bytes": facts.spill_bytes,
        "shared_memory_bytes": facts.shared_memory_bytes,
    }
