"""``python -m cutlass_aot`` is ``cutlass-aot``."""

import sys

if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        # The current directory, which the console script does not search either.
        del sys.path[0]
    from cutlass_aot.cli import main

    main()
