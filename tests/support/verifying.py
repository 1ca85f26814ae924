"""What is wrong with a bundle or a wheel, without the signers: what most tests of them ask."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cutlass_aot.bundle.verify.directory import Problem
from cutlass_aot.bundle.verify.path import CHECKERS, Checker, look_at
from cutlass_aot.bundle.wheel.verify import look_at_wheel


def verify_path(path: Path, checkers: Sequence[Checker] = CHECKERS) -> list[Problem]:
    return look_at(path, (), checkers).problems


def verify_wheel(wheel: Path) -> list[Problem]:
    return look_at_wheel(wheel).problems
