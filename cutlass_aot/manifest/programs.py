"""The manifest's ``[[programs]]`` and ``[[recordings]]`` tables: programs whose kernels are prebuilt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cutlass_aot.errors import ManifestError
from cutlass_aot.manifest.validation import is_whole_number, known, list_of_tables, text, words
from cutlass_aot.schema.targets import KNOWN_TARGETS, target_meant

KEYS = ("run", "targets", "tensors", "environment", "timeout")
TENSORS = ("fake", "real")
"""Tensors of a program have shapes alone, or memory on the machine that builds."""

DEFAULT_TIMEOUT = 3600
"""Seconds that a program may take, with what it compiles."""


@dataclass(frozen=True, slots=True)
class ProgramTable:
    """One ``[[programs]]`` table.

    Attributes:
        where: its name in errors, such as ``programs[0]``.
        run: the command and its arguments; ``python`` is the Python that builds.
        targets: GPU code targets it is run for, each once.
        fake_tensors: whether its tensors have shapes alone.
        environment: variables set besides those of the user and of the target.
        timeout: seconds.
    """

    where: str
    run: tuple[str, ...]
    targets: tuple[str, ...]
    fake_tensors: bool
    environment: tuple[tuple[str, str], ...]
    timeout: int

    @property
    def command(self) -> str:
        """The command as text."""
        return " ".join(self.run)


@dataclass(frozen=True, slots=True)
class RecordingTable:
    """One ``[[recordings]]`` table.

    ``where`` is its name in errors; ``file`` is what ``cutlass-aot capture`` wrote, relative to the
    manifest's folder.
    """

    where: str
    file: str


def parse_recordings(tables: Any) -> tuple[RecordingTable, ...]:
    """Read the ``[[recordings]]`` tables."""
    listed = list_of_tables(
        tables, "recordings", '[[recordings]]: expected tables, each with file = "NAME.recording"'
    )
    found = []
    for index, table in enumerate(listed):
        where = f"recordings[{index}]"
        known(table, ("file",), where)
        found.append(RecordingTable(where, text(table, "file", where)))
    return tuple(found)


def parse_programs(tables: Any, targets: tuple[str, ...]) -> tuple[ProgramTable, ...]:
    """Read the tables; ``targets`` are those of the bundle."""
    found = list_of_tables(
        tables, "programs", '[[programs]]: expected tables, each with run = ["python", "FILE"]'
    )
    return tuple(_table(table, f"programs[{index}]", targets) for index, table in enumerate(found))


def _table(table: Mapping[str, Any], where: str, targets: tuple[str, ...]) -> ProgramTable:
    known(table, KEYS, where)
    run = table.get("run")
    if not isinstance(run, list) or not run or not all(isinstance(word, str) and word for word in run):
        found = "missing" if run is None else repr(run)
        raise ManifestError(
            f'{where}.run: {found}, expected the words of a command, such as ["python", "warm.py"]'
        )
    if any("\0" in word for word in run):
        raise ManifestError(f"{where}.run: no word of a command can have a NUL character")
    own = words(table, "targets", where, KNOWN_TARGETS, targets, target_meant)
    foreign = [target for target in own if target not in targets]
    if foreign:
        raise ManifestError(
            f"{where}.targets: {', '.join(foreign)}: expected some of the bundle's, {', '.join(targets)}"
        )
    environment = table.get("environment", {})
    if not isinstance(environment, dict) or not all(_is_variable(*item) for item in environment.items()):
        raise ManifestError(f"{where}.environment: expected a table of variables with text as their values")
    timeout = table.get("timeout", DEFAULT_TIMEOUT)
    if not is_whole_number(timeout, 7 * 86_400):
        raise ManifestError(f"{where}.timeout: {timeout!r}, expected a number of seconds, of a week at most")
    (tensors,) = words({"tensors": [table.get("tensors", "fake")]}, "tensors", where, TENSORS)
    return ProgramTable(
        where, tuple(run), own, tensors == "fake", tuple(sorted(environment.items())), timeout
    )


def _is_variable(name: str, value: object) -> bool:
    return isinstance(value, str) and bool(name) and not any(c in name for c in "=\0") and "\0" not in value
