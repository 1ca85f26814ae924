"""``cutlass-aot run``: a program, answered from bundles."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cutlass_aot.cli.output.recordings import check_output, write_recording
from cutlass_aot.cli.output.terminal import say
from cutlass_aot.errors import CorruptFile, ExitCode
from cutlass_aot.runtime.files.temporary_folder import temporary_folder
from cutlass_aot.schema.words import plural

if TYPE_CHECKING:
    from cutlass_aot.programs.serve.ledger import Ledger


@click.command("run", context_settings={"ignore_unknown_options": True})
@click.option(
    "--bundle",
    "bundles",
    multiple=True,
    metavar="BUNDLE",
    help="A bundle's directory, or the name of an installed one; may be repeated. "
    "Those of the environment variable CUTLASS_AOT_SERVE if left out.",
)
@click.option(
    "--policy",
    type=click.Choice(["required", "warn", "jit"]),
    help="What happens where no bundle has a kernel; that of the program if left out.",
)
@click.option(
    "--ledger",
    "output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write what was answered and what was missed, as JSON.",
)
@click.option(
    "--keep",
    "kept",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="MANIFEST",
    help="Write what was missed and compiled (policies warn and jit) as a recording, and MANIFEST, which "
    "names it, for the next build.",
)
@click.option(
    "--without-dsl",
    is_flag=True,
    help="Have placeholders in the place of the DSL, so that it need not be installed.",
)
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    bundles: tuple[str, ...],
    policy: str | None,
    output: Path | None,
    kept: Path | None,
    without_dsl: bool,
    program: tuple[str, ...],
) -> int:
    """Run PROGRAM, and answer what it asks cute.compile for from bundles.

    \b
        cutlass-aot run --bundle fa4 -- python serve.py
        cutlass-aot run --bundle fa4 --policy jit --keep more.toml -- python serve.py

    The program is not changed. What no bundle has is an error under policy required, the default, and
    compiled under warn and jit. The exit status is that of the program, 128 + N if signal N ended it; SIGTERM
    and its like are handed on to it.
    """
    from cutlass_aot.programs.serve import serve
    from cutlass_aot.programs.start.environment import SERVE_VARIABLE
    from cutlass_aot.programs.start.launch import run_program
    from cutlass_aot.store.files import publish

    if not bundles and not os.environ.get(SERVE_VARIABLE):
        raise click.UsageError(
            "name a bundle: --bundle BUNDLE, or the environment variable CUTLASS_AOT_SERVE"
        )
    if kept is not None:
        if (policy or os.environ.get("CUTLASS_AOT_POLICY", "required")) == "required":
            raise click.UsageError("--keep needs --policy warn or jit: under required nothing is compiled")
        check_output(kept, kept.stem)
    if output is not None and not (output.parent.is_dir() and os.access(output.parent, os.W_OK)):
        raise click.UsageError(f"--ledger {output}: {output.parent} is not a folder that can be written to")
    for bundle in bundles:
        # Reports what is wrong with a bundle before the program begins.
        serve.opened(bundle)
    with temporary_folder("run") as folder:
        ledgers = folder / "ledgers"
        ledgers.mkdir()
        plan = {
            "begin": serve.MODULE,
            "bundles": [_absolute(bundle) for bundle in bundles],
            "policy": policy or "",
            "without_dsl": without_dsl,
        }
        missed = folder / "missed"
        missed.mkdir()
        plan |= {"ledger": str(ledgers), "keep": str(missed) if kept is not None else ""}
        ran = run_program(program, plan, folder)
        found = _gathered(ledgers)
        _tell(found)
        if not any(ledgers.iterdir()):
            say(
                "warning: no process of the program was answered from bundles: expected Python in an "
                "environment that has cutlass-aot, started without -I, -E and -S, and not ended by a signal",
                err=True,
            )
        if kept is not None and not write_recording(missed, kept, kept.stem, program):
            say(f"{kept} is not written: nothing was missed and compiled", err=True)
        # Last: if it cannot be written, nothing else is lost.
        if output is not None:
            publish(found.to_bytes(), output)
    if ran.interrupted or ran.status < 0:
        say(f"error: {ran.problem()}", err=True)
    if ran.interrupted:
        return ExitCode.INTERRUPTED
    # As in a shell: 128 + N if signal N ended it.
    return 128 - ran.status if ran.status < 0 else ran.status


def _absolute(bundle: str) -> str:
    # The program may change its directory before it opens the bundle.
    from cutlass_aot.programs.serve.serve import is_directory

    return str(Path(bundle).absolute()) if is_directory(bundle) else bundle


def _gathered(folder: Path) -> Ledger:
    """The ledgers of all processes of the program, merged."""
    from cutlass_aot.programs.serve.ledger import MAX_BYTES, Ledger
    from cutlass_aot.programs.start.files import read_whole

    found = Ledger()
    for path in sorted(folder.glob("*.json")):
        try:
            found.merge(Ledger.from_bytes(read_whole(path, MAX_BYTES), path.name))
        except CorruptFile as error:
            say(f"note: {error}", err=True)
    return found


def _tell(found: Ledger) -> None:
    answered = [entry for entry in found.entries.values() if entry.bundle]
    missed = [entry for entry in found.entries.values() if entry.missed]
    seconds = sum(entry.seconds for entry in answered)
    text = f"cutlass-aot: {plural(len(answered), 'request')} answered in {seconds * 1000:.0f} ms"
    saved = sum(entry.saved for entry in answered)
    if saved:
        text += f" instead of about {saved:.0f} s of compiling"
    if missed:
        seconds = sum(entry.compiling for entry in missed)
        text += f", {len(missed)} missed" + (f" and compiled in {seconds:.1f} s" if seconds else "")
    text += f", {plural(len(found.unused), 'request')} of the bundles unused"
    say(text, err=True)
    for entry in missed:
        say(f"  missed: {entry.reason}", err=True)
