"""Why a job failed, and whether that says something of the kernel or of the machine."""

from __future__ import annotations

import re

from cutlass_aot.builder.compile.messages import WorkerFailure
from cutlass_aot.schema.words import without_colors

# Only the machine's memory and disk: a kernel that runs out of registers, shared memory or tensor memory does
# so on every machine.
_NO_ROOM = re.compile(
    r"out of memory|\bbad_alloc\b|cannot allocate memory|virtual memory exhausted|no space left on device",
    re.IGNORECASE,
)
_WORDS_AT_THE_END = 4000
_MAX_LINE = 300


def reason_of(failure: WorkerFailure) -> str:
    """The reason of a failure, in one line."""
    if failure.timed_out:
        return f"timed out after {failure.timed_out:.0f} s"
    if failure.signal:
        return f"the compiler crashed (signal {failure.signal})"
    if not failure.raised:
        return f"the compiler crashed (exit status {failure.status})"
    return _in_one_line(failure.message)


def _in_one_line(message: str) -> str:
    """The first line of an exception that has text: messages of the DSL begin with an empty line."""
    if "\n" not in message:
        return message
    lines = [line.strip() for line in without_colors(message).splitlines() if line.strip()]
    # If the message begins with an empty line, the first line is only the name of the exception's class.
    line = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    return line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE - 3]}..."


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
