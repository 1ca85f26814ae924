"""Compile a kernel and link libraries on machines that differ, and compare the bytes.

    python -m tools.check.builder_host [--scratch DIR]

The machines: this one; this one's kind without its vector instructions (QEMU, Nehalem); and one with an
aarch64 CPU (QEMU), where the DSL and the compiler are those of the wheels for aarch64, fetched when they are
needed (350 MB). Each compiles a kernel to its object, and from that the kernel's library and the launcher of
either host. Exit status 1 if any file differs.

No GPU is needed, but the emulator of tools/check/emulator.py, and Linux 6.7 or newer, which lets a user's own
name space say what runs programs for aarch64: the compiler starts itself again. Five minutes on two cores.
"""

from __future__ import annotations

import os
import shlex
import site
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from tools.check import emulator

REPOSITORY = Path(__file__).resolve().parents[2]
HOSTS = ("aarch64", "x86_64")
TARGET, PROFILE = "sm_90a", "h200"
OLD_CPU = "Nehalem"
FETCHED = ("nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-cutlass-dsl", "ziglang")
# ELF of 64 bits, little-endian, a program or library for aarch64: the kernel's admin-guide/binfmt-misc.rst.
MAGIC = r"\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
ALLOWED = """\
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
printf '%s' {rule} > /proc/sys/fs/binfmt_misc/register
exec {command}
"""
TIMEOUT_SECONDS = 1800


def build(folder: Path, sites: Sequence[Path]) -> None:
    """Write a kernel's object, and libraries for each host, into a folder.

    Args:
        folder: an empty one.
        sites: folders of packages, which come before what is installed.
    """
    own = list(sys.path)
    sys.path[:] = [os.fspath(REPOSITORY)]
    for directory in sites:
        site.addsitedir(os.fspath(directory))
    sys.path += own
    # As a builder's worker: no engine is made for what this machine's GPU could run.
    os.environ["CUTE_DSL_ARCH"] = "sm_120a"
    from cutlass_aot.builder.compile.export import export
    from cutlass_aot.builder.link.linker import LinkToolchain
    from cutlass_aot.generators.device_profiles import load_profile
    from cutlass_aot.generators.protocol import Problem
    from cutlass_aot.generators.simt_f64_gemm.generator import SimtF64Gemm

    problem = Problem("gemm", ("f64", "f64", "f64"), "tnt", "f64")
    kernel = next(iter(SimtF64Gemm().enumerate(problem, TARGET, load_profile(PROFILE, Path()))))
    item = export(SimtF64Gemm().compile(kernel), kernel.symbol, folder / "kernel.ll")
    (folder / "kernel.object").write_bytes(item.to_bytes())
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        for host in HOSTS:
            toolchain = LinkToolchain.detect(host)
            toolchain.link_launcher(folder / f"launcher-{host}.so", Path(scratch))
            compiled = toolchain.compile({kernel.symbol: item.host_code}, Path(scratch), Path(scratch))
            toolchain.link(compiled, folder / f"library-{host}.so", Path(scratch))
    print(os.uname().machine, *(path.name for path in sorted(folder.iterdir())), flush=True)


def commands(scratch: Path) -> Mapping[str, tuple[list[str], dict[str, str]]]:
    """How Python is called on each machine, and with what environment beside."""
    wheels = scratch / "wheels"
    if not wheels.is_dir():
        click.echo(f"fetching {', '.join(FETCHED)} for aarch64")
        emulator.install_wheels(wheels, ".".join(map(str, sys.version_info[:2])), FETCHED)
    other = [os.fspath(scratch / "qemu-x86_64"), "-cpu", OLD_CPU, sys.executable]
    if not (scratch / "qemu-x86_64").is_file():
        emulator.fetch_emulator("qemu-x86_64", scratch)
    program = emulator.emulated(emulator.DIRECTORY)[-1]
    return {
        "this machine": ([sys.executable, __file__], {}),
        f"x86_64, {OLD_CPU}": ([*other, __file__], {}),
        "aarch64": (
            [
                program,
                "-s",
                __file__,
                "--site",
                os.fspath(wheels),
                "--site",
                os.fspath(emulator.DIRECTORY / "site"),
            ],
            {
                "QEMU_LD_PREFIX": os.fspath(emulator.DIRECTORY / "root"),
                "PYTHONPATH": os.fspath(emulator.DIRECTORY / "site"),
            },
        ),
    }


def in_name_space(command: Sequence[str]) -> list[str]:
    """A command in a name space where programs for aarch64 are run by the emulator, whoever starts them."""
    rule = f":aarch64:M::{MAGIC}:{MASK}:{emulator.DIRECTORY / emulator.EMULATOR}:F"
    script = ALLOWED.format(rule=shlex.quote(rule), command=shlex.join(command))
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-euc", script]


@click.command(help=__doc__)
@click.option("--scratch", type=click.Path(path_type=Path), default=REPOSITORY / "build" / "builder-hosts")
@click.option("--into", type=click.Path(path_type=Path), hidden=True)
@click.option("--site", "sites", type=click.Path(path_type=Path), multiple=True, hidden=True)
def main(scratch: Path, into: Path | None, sites: tuple[Path, ...]) -> None:
    """Build on every machine and compare; or, as a child, build."""
    if into is not None:
        build(into, sites)
        return
    if emulator.present(emulator.DIRECTORY) is None:
        raise click.ClickException("there is no emulator for aarch64: run make emulator")
    scratch = scratch.absolute()
    scratch.mkdir(parents=True, exist_ok=True)
    made: dict[str, dict[str, bytes]] = {}
    for machine, (command, environment) in commands(scratch).items():
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            into = Path(folder) / "made"
            into.mkdir()
            words = [*command, "--into", os.fspath(into)]
            subprocess.run(
                in_name_space(words) if machine == "aarch64" else words,
                env={**os.environ, **environment},
                timeout=TIMEOUT_SECONDS,
                check=True,
            )
            made[machine] = {path.name: path.read_bytes() for path in sorted(into.iterdir())}
    first, *others = made
    wrong = 0
    for name, data in made[first].items():
        differing = [other for other in others if made[other].get(name) != data]
        wrong += bool(differing)
        click.echo(
            f"{name:<22} {len(data):>7} bytes  " + ("differs on " if differing else "the same everywhere")
        )
        for other in differing:
            click.echo(f"    {other}")
    click.echo(f"{len(made[first])} files on {len(made)} machines, {wrong} differ")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
