"""``cutlass-aot capture``: what a program compiles on a GPU, as a recording and a manifest that names it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from cutlass_aot.errors import ManifestError
from cutlass_aot.words import plural

SUFFIX = ".recording"


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
        with the compiled
    object, so that any machine can build the bundle, without the program, its data and a GPU. Packages' own
    caches of compiled kernels are off meanwhile. The program's own Python processes are recorded too. An
    interrupt ends the program; what it compiled until then is written.
    """
    from cutlass_aot.manifest.model import check_name
    from cutlass_aot.programs import keep
    from cutlass_aot.programs.launch import run_program
    from cutlass_aot.schema.recording import recording_to_bytes

    # Whatever can be refused is refused now: the program may run for hours.
    check_name(name)
    if not output.parent.is_dir() or not os.access(output.parent, os.W_OK):
        raise ManifestError(
            f"{output}: {output.parent} is no folder to write to: make it, or name another one"
        )
    with tempfile.TemporaryDirectory(prefix="cutlass-aot-capture-", ignore_cleanup_errors=True) as folder:
        found = Path(folder) / "found"
        found.mkdir()
        ran = run_program(program, {"begin": keep.MODULE, "folder": str(found)}, Path(folder))
        recording, objects = keep.gathered(found)
    for reason in recording.refusals:
        click.echo(f"note: not recorded: {reason}", err=True)
    problem = ran.problem()
    if not recording.requests:
        reason = (
            problem or "the program compiled nothing that can be recorded: no call of cute.compile was seen"
        )
        click.echo(f"error: {reason}; nothing is written", err=True)
        return 1
    file = output.with_suffix(SUFFIX)
    _write(recording_to_bytes(recording, objects), file)
    targets = sorted({item.request.target for item in recording.requests})
    _write(_manifest(program, name, targets, file.name).encode("utf-8", "backslashreplace"), output)
    click.echo(f"{output}: {plural(len(recording.requests), 'request')} for {', '.join(targets)}, in {file}")
    if problem:
        click.echo(f"error: {problem}", err=True)
    return 1 if problem else 0


def _manifest(program: Sequence[str], name: str, targets: Sequence[str], file: str) -> str:
    words = json.dumps(" ".join(program))
    return "\n".join(
        [
            f"# What {words} compiled, recorded by `cutlass-aot capture`.",
            "[bundle]",
            f"name = {json.dumps(name)}",
            'version = "0.1.0"',
            f"targets = {json.dumps(list(targets))}",
            "",
            "[[recordings]]",
            f"file = {json.dumps(file)}",
            "",
        ]
    )


def _write(data: bytes, path: Path) -> None:
    """Write a file at once: a reader sees what was there before, or all of the new one."""
    from cutlass_aot.store.files import publish

    publish(data, path)
