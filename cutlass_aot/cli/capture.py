"""``cutlass-aot capture``: what a program compiles on a GPU, as a recording and a manifest that names it."""

from __future__ import annotations

from pathlib import Path

import click

from cutlass_aot.cli.output.recordings import SUFFIX, check_output, write_recording
from cutlass_aot.cli.output.terminal import say
from cutlass_aot.errors import ExitCode
from cutlass_aot.runtime.files.temporary_folder import temporary_folder


@click.command("capture", context_settings={"ignore_unknown_options": True})
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("captured.toml"),
    show_default=True,
    help=f"Manifest to write; the recording goes beside it, as {SUFFIX}.",
)
@click.option("--name", default="captured", show_default=True, help="Name of its bundle.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def command(output: Path, name: str, program: tuple[str, ...]) -> int:
    """Run PROGRAM on this machine's GPU, and record what it compiles with cute.compile.

    \b
        cutlass-aot capture -o app.toml -- python serve.py
        cutlass-aot build app.toml

    The program runs as it would: it compiles, and launches what it compiled. The recording has each request
    with the compiled object, so that any machine can build the bundle, without the program, its data and a
    GPU. Packages' own caches of compiled kernels are off meanwhile. The program's own Python processes are
    recorded too. An interrupt ends the program; what it compiled until then is written.
    """
    from cutlass_aot.programs.describe.profiles import sm_count_at_hand
    from cutlass_aot.programs.record import keep
    from cutlass_aot.programs.start.launch import run_program

    # Whatever can be refused is refused now: the program may run for hours.
    check_output(output, name)
    with temporary_folder("capture") as folder:
        found = folder / "found"
        found.mkdir()
        ran = run_program(program, {"begin": keep.MODULE, "folder": str(found)}, folder)
        recorded = write_recording(found, output, name, program)
    if recorded and sm_count_at_hand() is None:
        say(
            "warning: there is no GPU here: the DSL has taken a target, which CUTE_DSL_ARCH names; to record "
            "without a GPU, name the program in a manifest under [[programs]]",
            err=True,
        )
    problem = ran.problem()
    if not recorded:
        reason = (
            problem or "the program compiled nothing that can be recorded: no call of cute.compile was seen"
        )
        say(f"error: {reason}; nothing is written", err=True)
    elif problem:
        say(f"error: {problem}", err=True)
    if ran.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.FAILED if problem or not recorded else ExitCode.GOOD
