"""``python -m cutlass_aot``: the command line, where its script is not on the path."""

from cutlass_aot.cli import main

if __name__ == "__main__":
    main()
