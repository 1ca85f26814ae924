"""Why a job failed, and whether that says something of the kernel or of the machine."""

from __future__ import annotations

import re

from cutlass_aot.builder.compile.messages import WorkerFailure

# Only the machine's memory and disk: a kernel that runs out of registers, shared memory or tensor memory does
# so on every machine.
_NO_ROOM = re.compile(
    r"out of memory|\bbad_alloc\b|cannot allocate memory|virtual memory exhausted|no space left on device",
    re.IGNORECASE,
)
_WORDS_AT_THE_END = 4000
_MAX_LINE = 300
_MAX_LINES = 40


def reason_of(failure: WorkerFailure) -> str:
    """The reason of a failure: one line that says what, then where in the kernel's source, and advice."""
    if failure.timed_out:
        return f"timed out after {failure.timed_out:.0f} s"
    if failure.signal:
        return f"the compiler crashed (signal {failure.signal})"
    if not failure.raised:
        return f"the compiler crashed (exit status {failure.status})"
    if "\n" not in failure.message:
        return failure.message
    first, *lines = [line.rstrip() for line in failure.message.splitlines() if line.strip()] or [""]
    # A message of the DSL begins with an empty line, so that the first has only the name of the class.
    if first.endswith(":") and lines:
        first = f"{first} {lines.pop(0).strip()}"
    if len(lines) > _MAX_LINES:
        lines = [*lines[:_MAX_LINES], "  ..."]
    return "\n".join(
        line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE - 3]}..." for line in (first, *lines)
    )


def is_machine_failure(failure: WorkerFailure, log: str) -> bool:
    """Whether a failure may be the machine's: it lacked time, memory or disk, or killed the worker.

    Such a failure is not recorded, so that the next build tries again; any other is a property of the kernel
    with this toolchain. Every signal counts as the machine's: a crash of the compiler cannot be told from the
    system killing it for lack of memory. ``log`` is what the compiler printed.
    """
    if failure.timed_out or failure.signal:
        return True
    if "MemoryError" in failure.raised or "OSError" in failure.raised:
        return True
    return bool(_NO_ROOM.search(failure.message) or _NO_ROOM.search(log[-_WORDS_AT_THE_END:]))
