"""``cutlass-aot bundle``: merge, prefill, unpack, push and pull whole bundles."""

from __future__ import annotations

import re
from pathlib import Path

import click

from cutlass_aot.bundle.oci import TIMEOUT
from cutlass_aot.cli.options import (
    bundle_argument,
    json_option,
    out_option,
    store_option,
    together,
    trusted_keys_option,
)
from cutlass_aot.cli.output.render import print_json, resumable, tell_unchecked
from cutlass_aot.cli.output.terminal import say
from cutlass_aot.schema.words import plural, size


@click.group("bundle")
def command() -> None:
    """Work with whole bundles."""


@command.command("unpack", short_help="Unpack a bundle into plain files, for programs without Python.")
@bundle_argument
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

    index.json there says what is where; examples/cpp shows how it is loaded. What is unpacked is verified.
    """
    from cutlass_aot.bundle.unpack import unpack_bundle

    index = unpack_bundle(bundle, output, kernels)
    libraries = {path for item in index for path in item["libraries"].values()}
    say(f"{output}: {plural(len(index), 'kernel')}, {plural(len(libraries), 'library')}")
    return 0


@command.command("prefill", short_help="Unpack all GPU code of a bundle before a program needs it.")
@bundle_argument
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), required=False)
def prefill(bundle: Path, directory: Path | None) -> int:
    """Unpack all GPU code of BUNDLE now, into DIRECTORY or where this user's processes share it.

    CUTLASS_AOT_CACHE is to name DIRECTORY when programs run; they need not be able to write there. Nothing
    of it depends on the machine: an image can be filled where it is made.
    """
    from cutlass_aot.bundle.prefill import prefill as fill

    filled = fill(bundle, directory)
    say(f"{filled.directory}: {plural(filled.files, 'file')}, {size(filled.size)}")
    return 0


@command.command("merge", short_help="Merge shards of a build into one bundle.")
@click.argument("shards", nargs=-1, required=True, type=click.Path(path_type=Path))
@store_option
@out_option
@resumable
def merge(shards: tuple[Path, ...], store: Path, out: Path) -> int:
    """Merge SHARDS, the directories that `build --shard` wrote, into one bundle.

    All shards of one build are needed, in any order. Nothing is compiled; the bundle is the one that a single
    machine would have built, to the byte.
    """
    from cutlass_aot.builder.build import merge as merge_shards
    from cutlass_aot.cli.output.progress import PlainReport

    result = merge_shards(shards, out, store, PlainReport())
    state = "written" if result.written else "up to date"
    made_of = f"{plural(result.kernels, 'kernel')}, {plural(len(shards), 'shard')}"
    say(f"{result.bundle}: {made_of}, {state}")
    return 0


_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?")


def _hosts(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not _HOST.fullmatch(value):
            raise click.BadParameter(
                f"{value!r} cannot be a host: expected one such as auth.example.org:5001"
            )
    return values


registry_options = together(
    click.option("--plain-http", is_flag=True, help="Speak plain HTTP, to a registry without TLS."),
    click.option(
        "--timeout",
        type=click.FloatRange(1),
        default=TIMEOUT,
        show_default=True,
        help="Seconds that the registry may take for a request; a large file gets more, by its size.",
    ),
    click.option(
        "--login-host",
        "login_hosts",
        multiple=True,
        metavar="HOST[:PORT]",
        callback=_hosts,
        help="Another host that the password for the registry may be sent to; repeatable. With --plain-http, "
        "whoever alters the registry's answers gets it.",
    ),
)


@command.command("push", short_help="Put a bundle into an OCI registry.")
@bundle_argument
@click.argument("name", metavar="REGISTRY/REPOSITORY:TAG")
@registry_options
@json_option
def push(
    bundle: Path, name: str, plain_http: bool, timeout: float, login_hosts: tuple[str, ...], as_json: bool
) -> int:
    """Put BUNDLE into an OCI registry, and print its name there by digest.

    Every byte is verified before anything is sent. Equal bundles have equal digests. Credentials are those of
    docker login or oras login.
    """
    from cutlass_aot.bundle.oci.push import push_bundle

    pushed = push_bundle(bundle, name, plain_http=plain_http, timeout=timeout, login_hosts=login_hosts)
    tell_unchecked(bundle)
    if as_json:
        print_json({"name": pushed.name, "uploaded": pushed.uploaded, "blobs": pushed.blobs})
    else:
        say(f"{pushed.name}: {plural(pushed.blobs, 'blob')}, {pushed.uploaded} of them new")
    return 0


@command.command("pull", short_help="Fetch a bundle from an OCI registry.")
@click.argument("name", metavar="REGISTRY/REPOSITORY:TAG|@DIGEST")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="The bundle's directory; a bundle that is there is replaced.",
)
@trusted_keys_option
@click.option(
    "--allow-older",
    is_flag=True,
    help="Also replace a signed bundle by one whose signature has a lower sequence.",
)
@registry_options
@json_option
def pull(
    name: str,
    output: Path,
    keys: tuple[Path, ...],
    allow_older: bool,
    plain_http: bool,
    timeout: float,
    login_hosts: tuple[str, ...],
    as_json: bool,
) -> int:
    """Fetch a bundle from an OCI registry, and put it in place once every byte is verified.

    By digest (REGISTRY/REPOSITORY@sha256:...) it is exactly the bundle that was pushed. Without --key, one of
    the keys that CUTLASS_AOT_TRUSTED_KEYS names, if it names any, has to have signed it. Credentials are
    those of docker login or oras login.
    """
    from cutlass_aot.bundle.oci.pull import pull_bundle

    pulled = pull_bundle(
        name,
        output,
        keys=keys,
        allow_older=allow_older,
        plain_http=plain_http,
        timeout=timeout,
        login_hosts=login_hosts,
    )
    tell_unchecked(output)
    if as_json:
        print_json(
            {"name": pulled.name, "written": pulled.written, "files": pulled.files, "bytes": pulled.size}
        )
    else:
        state = "written" if pulled.written else "up to date"
        say(f"{output}: {plural(pulled.files, 'file')}, {size(pulled.size)}, {state}; {pulled.name}")
    return 0
