"""``cutlass-aot bundle``: what is done with whole bundles, and with the shards of one."""

from __future__ import annotations

from pathlib import Path

import click

from cutlass_aot.cli.options import out_option, store_option
from cutlass_aot.words import plural


@click.group("bundle")
def command() -> None:
    """Work with whole bundles."""


@command.command("unpack")
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.argument("output", type=click.Path(path_type=Path))
@click.option(
    "--kernel",
    "kernels",
    multiple=True,
    metavar="NAME",
    help="This kernel alone, by name or the beginning of its name or digest; repeatable.",
)
def unpack(bundle: Path, output: Path, kernels: tuple[str, ...]) -> int:
    """Unpack BUNDLE into the new directory OUTPUT: plain libraries and GPU code, for programs without Python.

    index.json there says what is where; examples/cpp shows how it is loaded. What is taken is verified.
    """
    from cutlass_aot.bundle.unpack import unpack_bundle

    index = unpack_bundle(bundle, output, kernels)
    libraries = {path for item in index for path in item["libraries"].values()}
    click.echo(f"{output}: {plural(len(index), 'kernel')}, {plural(len(libraries), 'library')}")
    return 0


@command.command("merge")
@click.argument("shards", nargs=-1, required=True, type=click.Path(path_type=Path))
@store_option
@out_option
def merge(shards: tuple[Path, ...], store: Path, out: Path) -> int:
    """Put SHARDS, the directories that `build --shard` wrote, together to one bundle.

    All shards of one build are needed, in any order. Nothing is compiled; the bundle is the one that a single
    machine would have built, to the byte.
    """
    from cutlass_aot.builder.pipeline import merge as merge_shards
    from cutlass_aot.cli.progress import PlainReport

    result = merge_shards(shards, out, store, PlainReport())
    state = "written" if result.written else "up to date"
    made_of = f"{plural(result.kernels, 'kernel')}, {plural(len(shards), 'shard')}"
    click.echo(f"{result.bundle}: {made_of}, {state}")
    return 0
