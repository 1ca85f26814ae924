"""Why a job failed, and whether that says something of the kernel or of the machine."""

from __future__ import annotations

import re

from cutlass_aot.builder.compile.messages import WorkerFailure
from cutlass_aot.schema.words import without_colors

# Of the machine's memory and disk alone: registers, shared memory and tensor memory run out for a kernel,
# on every machine.
_NO_ROOM = re.compile(
    r"out of memory|\bbad_alloc\b|cannot allocate memory|virtual memory exhausted|no space left on device",
    re.IGNORECASE,
)
_WORDS_AT_THE_END = 4000
_MAX_LINE = 300


def reason_of(failure: WorkerFailure) -> str:
    """What happened, in one line."""
    if failure.timed_out:
        return f"timed out after {failure.timed_out:.0f} s"
    if failure.signal:
        return f"the compiler crashed (signal {failure.signal})"
    if not failure.raised:
        return f"the compiler crashed (exit status {failure.status})"
    return _in_one_line(failure.message)


def _in_one_line(message: str) -> str:
    """The first line of an exception that says something: the DSL begins with an empty one."""
    if "\n" not in message:
        return message
    lines = [line.strip() for line in without_colors(message).splitlines() if line.strip()]
    # The name of the exception's class stands alone where its message begins with an empty line.
    line = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    return line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE - 3]}..."


def is_machine_failure(failure: WorkerFailure, log: str) -> bool:
    """Whether a failure may not come again: the machine lacked time, memory or disk, or killed the worker.

    Such a failure is not recorded, so that the next build tries again. What is left is a fact of the kernel
    with this toolchain. Any signal counts as the machine's: whether the compiler brought it upon itself or
    the system sent it for lack of memory cannot be told apart.

    Args:
        failure: how the job ended.
        log: what the compiler printed.
    """
    if failure.timed_out or failure.signal:
        return True
    if "MemoryError" in failure.raised or "OSError" in failure.raised:
        return True
    return bool(_NO_ROOM.search(failure.message) or _NO_ROOM.search(log[-_WORDS_AT_THE_END:]))
