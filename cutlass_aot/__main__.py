"""The entry point of the command line: ``cutlass-aot``, and ``python -m cutlass_aot``.

Nothing is imported here that takes time, so that an interrupt while the command line is imported can be
handled too: it ends the process as one does later, without a traceback.
"""

from __future__ import annotations

import os
import signal

_INTERRUPTED = 130
"""``ExitCode.INTERRUPTED``, whose module takes time to import."""


def _leave(_number: int, _frame: object) -> None:
    # At once: nothing was begun, and an exception would be printed, or lost in a callback of an import.
    os._exit(_INTERRUPTED)


def _leave_quietly() -> None:
    """End the process at an interrupt. One that is ignored, as of a background job, stays ignored."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is usual:
            signal.signal(number, _leave)


def _interrupt_again() -> None:
    """Have an interrupt raise KeyboardInterrupt, as a command expects that has something to clean up."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is _leave:
            signal.signal(number, usual)


def main() -> None:
    """Run the command line."""
    from cutlass_aot.cli import main as run

    _interrupt_again()
    run()


_leave_quietly()

if __name__ == "__main__":
    main()
