"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from cutlass_aot.builder.compile.cores import available_workers

Function = TypeVar("Function", bound=Callable[..., Any])


class KeyPath(click.Path):
    """Where a key is. Empty, as of a variable that is unset, it would be the current directory."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path."""
        if value == "":
            self.fail("an empty path names no key: expected a file (is a variable unset?)", param, ctx)
        return super().convert(value, param, ctx)


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


def upstream_options(function: Function) -> Function:
    """Options for upstream stores."""
    options = (
        click.option(
            "--upstream",
            "upstream",
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


def build_options(function: Function) -> Function:
    """Options of everything that runs workers."""
    options = (
        store_option,
        click.option(
            "-j",
            "--jobs",
            type=click.IntRange(1, 1024),
            default=available_workers,
            show_default="what cores and memory allow",
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
