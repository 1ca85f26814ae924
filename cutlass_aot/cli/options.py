"""Options that several commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from cutlass_aot.builder.compile.cores import available_workers
from cutlass_aot.schema.tuning.ranking import MAX_EXTENT
from cutlass_aot.schema.words import few

Decorator = Callable[[Any], Any]

BUNDLES = Path("build/bundles")
"""Where ``build`` writes bundles if nothing else is said."""


class KeyPath(click.Path):
    """Path of a key. An empty one, as of an unset variable, would name the current directory."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; an empty one is refused."""
        if value == "":
            self.fail("an empty path names no key: expected a file (is a variable unset?)", param, ctx)
        return super().convert(value, param, ctx)


class BundlePath(click.Path):
    """Directory of a bundle, or the name of an installed one; ``expected`` says what else may be named."""

    def __init__(self, expected: str = "a directory") -> None:
        super().__init__(path_type=Path)
        self.expected = expected

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The directory of the bundle that is meant."""
        del param, ctx
        from cutlass_aot.errors import BundleError
        from cutlass_aot.runtime.installed import directory_of
        from cutlass_aot.schema.bundles.catalog import MANIFEST_NAME

        if isinstance(value, Path):
            return value
        try:
            return directory_of(value, self.expected)
        except BundleError as error:
            built = BUNDLES / value
            if os.path.lexists(built / MANIFEST_NAME):
                raise BundleError(f"{error}; did you mean {str(built)!r}?") from None
            raise


class _ManifestPath(click.Path):
    """A manifest; in the place of one, its folder and its name without the suffix are refused with advice."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, which need not exist."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if path.is_dir():
            inside = [str(file) for file in sorted(path.glob("*.toml")) if file.name != "pyproject.toml"]
            advice = f"name {few(inside)}" if inside else "it has none"
            self.fail(f"{path} is a folder, expected a manifest: {advice}", param, ctx)
        named = path.with_name(f"{path.name}.toml")
        if not path.exists() and named.is_file():
            self.fail(f"{path}: no such file, expected a manifest; did you mean {str(named)!r}?", param, ctx)
        return path


class _GpuNumber(click.IntRange):
    """The number of a GPU of this machine; a model, which other commands take, is refused with advice."""

    def __init__(self) -> None:
        super().__init__(0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        if isinstance(value, str) and not re.fullmatch("-?[0-9]+", value):
            self.fail(
                f"{value!r}: expected the number of a GPU, such as 0; cutlass-aot doctor lists those of this "
                "machine",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


def together(*options: Decorator) -> Decorator:
    """Several options as one decorator; help lists them in this order."""

    def decorate(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def filter_options(**meanings: str) -> Decorator:
    """A repeatable option for each name, which takes a shell pattern; the values are the help texts."""
    return together(
        *(
            click.option(f"--{name}", multiple=True, metavar="PATTERN", help=meaning)
            for name, meaning in meanings.items()
        )
    )


def filters_given(filters: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """The patterns of those :func:`filter_options` that were given."""
    return {name: list(patterns) for name, patterns in filters.items() if patterns}


extent_option = click.option(
    "--extent",
    "extents",
    multiple=True,
    metavar="NAME=NUMBER",
    help="An extent of the operands by its name, such as N=1000000; may be repeated.",
)


def pairs_given(items: tuple[str, ...], option: str) -> list[tuple[str, str]]:
    """Names and values of a repeated option such as ``--where NAME=VALUE``."""
    found = [item.partition("=") for item in items]
    for item, (name, equals, value) in zip(items, found, strict=True):
        if not (name and equals and value):
            raise click.BadParameter(f"{item!r}: expected a name, = and a value", param_hint=option)
    return [(name, value) for name, _, value in found]


def extents_given(items: tuple[str, ...]) -> dict[str, int]:
    """The extents of :data:`extent_option`."""
    found = {}
    for name, text in pairs_given(items, "--extent"):
        # Python refuses to convert thousands of digits.
        extent = int(text) if re.fullmatch("[0-9]{1,19}", text) else 0
        if not 1 <= extent <= MAX_EXTENT:
            raise click.BadParameter(
                f"{name}={text}: expected a whole number from 1 to {MAX_EXTENT}", param_hint="--extent"
            )
        found[name] = extent
    return found


manifest_argument = click.argument("manifest", type=_ManifestPath())
bundle_argument = click.argument("bundle", type=BundlePath())
gpu_number_option = click.option(
    "--gpu", type=_GpuNumber(), default=0, show_default=True, help="CUDA device ordinal."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
plugin_option = click.option(
    "--plugin", "plugins", multiple=True, help="Module to import first; may be repeated."
)
trusted_keys_option = click.option(
    "--key",
    "keys",
    type=KeyPath(),
    multiple=True,
    help="A public key, or a directory of them, of which one has to have signed it; may be repeated.",
)
store_option = click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/store"),
    show_default=True,
    help="Directory of compiled kernels.",
)
out_option = click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=BUNDLES,
    show_default=True,
    help="Directory that takes the bundle's directory.",
)
upstream_options = together(
    click.option(
        "--upstream",
        type=click.Path(path_type=Path, file_okay=False),
        multiple=True,
        help="An upstream store's directory, read for what the store lacks; may be repeated.",
    ),
    click.option("--remote", metavar="URL", help="A store on a web server or in a bucket."),
    click.option("--remote-read-only", is_flag=True, help="Put nothing into the remote store."),
)
build_options = together(
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
"""Options of commands that run workers."""
