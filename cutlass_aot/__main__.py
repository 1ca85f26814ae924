"""``python -m cutlass_aot`` is ``cutlass-aot``."""

from cutlass_aot.cli import main

if __name__ == "__main__":
    main()
