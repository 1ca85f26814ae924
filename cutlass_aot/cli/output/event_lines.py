"""What a build tells, as JSON: an event a line on standard output, for scripts and CI."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from cutlass_aot.builder import events
from cutlass_aot.builder.events import Event
from cutlass_aot.schema.kernels.artifact import Artifact

NAMES: dict[type[Event], str] = {
    events.Enumerating: "enumerating",
    events.Ranking: "ranking",
    events.Running: "running",
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
"""What the field ``event`` says of each kind."""


class EventLines:
    """Prints every event as one JSON object on a line of its own, with sorted keys, as it happens."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._keys: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        """Print an event; ``at`` is seconds since the build began."""
        if isinstance(event, events.Planned):
            self._keys = {item.kernel.digest: item.key for item in event.kernels}
        fields = self._fields(event)
        line = {"event": NAMES[type(event)], "at": round(time.monotonic() - self._begin, 3), **fields}
        click.echo(json.dumps(line, sort_keys=True))

    def _fields(self, event: Event) -> dict[str, Any]:
        if isinstance(event, events.Enumerating):
            return {"problems": event.problems}
        if isinstance(event, events.Ranking):
            return {"shapes": event.shapes}
        if isinstance(event, events.Running):
            return {"command": event.command, "target": event.target}
        if isinstance(event, events.Ran):
            counts = {"requests": event.requests, "compiled": event.compiled, "failed": event.failed}
            return {"command": event.command, "target": event.target, **counts}
        if isinstance(event, events.Planned):
            kernels, missing = len(event.kernels), event.missing
            warnings = list(event.warnings)
            return {
                "kernels": kernels,
                "missing": missing,
                "present": kernels - missing,
                "warnings": warnings,
            }
        if isinstance(event, events.UpToDate):
            return {"kernels": event.kernels}
        if isinstance(event, events.Started):
            return {"kernel": event.kernel.name, "key": self._key(event.kernel.digest)}
        if isinstance(event, (events.Compiled, events.Shared)):
            kernel = {"kernel": event.kernel.name, "key": self._key(event.kernel.digest)}
            return {**kernel, **_artifact(event.artifact)}
        if isinstance(event, events.Failed):
            failure = event.failure
            return {
                "kernel": failure.kernel.name,
                "key": self._key(failure.kernel.digest),
                "reason": failure.reason,
                "log": str(failure.log),
            }
        if isinstance(event, events.Linking):
            return {"libraries": event.libraries}
        if isinstance(event, events.Linked):
            return {
                "library": event.library,
                "host": event.host,
                "kernels": event.kernels,
                "bytes": event.size,
                "seconds": None if event.seconds is None else round(event.seconds, 3),
            }
        if isinstance(event, events.Notice):
            return {"text": event.text}
        return {
            "bundle": str(event.bundle),
            "kernels": event.kernels,
            "compiled": event.compiled,
            "failed": event.failed,
            "written": event.written,
        }

    def _key(self, digest: str) -> str | None:
        return self._keys.get(digest)


def _artifact(artifact: Artifact) -> dict[str, Any]:
    facts = artifact.facts
    return {
        "seconds": round(artifact.seconds, 3),
        "bytes": artifact.object_bytes,
        "registers": facts.registers,
        "spill_bytes": facts.spill_bytes,
        "shared_memory_bytes": facts.shared_memory_bytes,
    }
