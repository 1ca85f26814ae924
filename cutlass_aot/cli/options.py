"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cutlass_aot.builder.cores import available_cores

if TYPE_CHECKING:
    from cutlass_aot.store.store import Store

Function = TypeVar("Function", bound=Callable[..., Any])


def manifest_argument(function: Function) -> Function:
    """The manifest's path."""
    path = click.Path(path_type=Path, dir_okay=False)
    return click.argument("manifest", type=path)(function)


def bundle_argument(function: Function) -> Function:
    """A bundle's directory."""
    return click.argument("bundle", type=click.Path(path_type=Path))(function)


def store_option(function: Function) -> Function:
    """The store's directory."""
    return click.option(
        "--store",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("build/store"),
        show_default=True,
        help="Directory of compiled kernels.",
    )(function)


def out_option(function: Function) -> Function:
    """Where a bundle's directory goes."""
    return click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("build/bundles"),
        show_default=True,
        help="Directory that takes the bundle's directory.",
    )(function)


def level_options(function: Function) -> Function:
    """Options for levels behind the store; :func:`open_store` takes their values."""
    options = (
        click.option(
            "--store-behind",
            "behind",
            type=click.Path(path_type=Path, file_okay=False),
            multiple=True,
            help="Another store's directory, to look in for what the store lacks; may be repeated.",
        ),
        click.option("--remote", metavar="URL", help="A store on a web server or in a bucket."),
        click.option("--remote-read-only", is_flag=True, help="Put nothing into the remote store."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def open_store(
    path: Path,
    behind: Sequence[Path] = (),
    remote: str | None = None,
    remote_read_only: bool = False,
    *,
    create: bool = True,
    tell: Callable[[str], None] = lambda text: click.echo(f"note: {text}", err=True),
) -> Store:
    """The store that options name, with the levels behind it.

    Args:
        path: its directory.
        behind: other stores' directories, looked in before the remote.
        remote: URL of a remote store.
        remote_read_only: whether nothing is to be put there.
        create: whether to make the directory.
        tell: told when the remote is given up; maybe by another thread.

    Raises:
        StoreError: if one of them cannot be used.
        SchemaTooNew: if a newer release made one of the directories.
    """
    from cutlass_aot.store.levels import DirectoryLevel, Level
    from cutlass_aot.store.store import Store

    levels: list[Level] = [DirectoryLevel(root) for root in behind]
    if remote is not None:
        from cutlass_aot.store.remote import RemoteStore

        levels.append(RemoteStore(remote, push=not remote_read_only, tell=tell))
    return Store(path, create=create, behind=levels)


def build_options(function: Function) -> Function:
    """Options of everything that runs workers."""
    options = (
        store_option,
        click.option(
            "-j",
            "--jobs",
            type=click.IntRange(1, 1024),
            default=available_cores,
            show_default="available cores",
            help="Kernels compiled at once.",
        ),
        click.option(
            "--timeout",
            type=click.FloatRange(1),
            default=600.0,
            show_default=True,
            help="Seconds one kernel may take.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function
