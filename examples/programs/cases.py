"""Run the cases of a program, and compare what its kernels gave with torch."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence

import torch

TOLERANCE = 2e-2

Result = tuple[torch.Tensor, Callable[[], torch.Tensor]]
"""What a kernel gave, and what computes what it should have given."""
Case = Callable[[int], list[Result]]
"""Takes a length or a number of rows."""


def main(
    what: str | None, cases: Iterable[tuple[str, Case]], sizes: Sequence[int], others: Sequence[int]
) -> None:
    """Run every case; with ``--check``, compare its results.

    Args:
        what: the program, in words.
        cases: with their names.
        sizes: what each case is run for.
        others: what it is run for besides, to be compared.

    Raises:
        SystemExit: with how many cases failed, if some did.
    """
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--check", action="store_true", help="compare the results with torch's (needs a GPU)")
    checked = parser.parse_args().check
    failed = []
    for name, case in cases:
        try:
            with torch.no_grad():
                for size in (*sizes, *others) if checked else sizes:
                    for found, expected in case(size):
                        if checked:
                            _compare(found, expected())
        except Exception as error:
            failed.append(name)
            print(f"FAILED  {name}: {type(error).__name__}: {error}", flush=True)
        else:
            print(f"ok      {name}", flush=True)
    if failed:
        raise SystemExit(f"{len(failed)} cases failed")


def _compare(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare with what torch computes in float32."""
    scale = expected.abs().max().item()
    torch.testing.assert_close(found.float(), expected.float(), atol=TOLERANCE * scale, rtol=TOLERANCE)
