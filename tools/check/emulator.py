"""Fetch what runs programs for aarch64 on an x86-64 machine, for the tests of bundles' aarch64 libraries.

    python -m tools.check.emulator [--directory build/emulator]

What it fetches: QEMU's user-mode emulator; CPython, the C library and the C++ library of this machine's own
distribution, built for arm64; and the wheels for aarch64 that this package needs at run time, in the versions
of constraints.txt. The machine's package lists and its installed packages stay as they are, and no rights
are needed: apt works on lists of its own below the directory.

Needs Debian, or a distribution made from it whose archive has arm64, and its network. apt holds packages
against the distribution's signatures, pip wheels against the index's digests; then CPython is run and imports
what was fetched. The directory appears when all of that is done. One that is there and is what would be
fetched is left as it is; exit status 1 says why there is none.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parents[2]
DIRECTORY = REPOSITORY / "build" / "emulator"
RECORD = "emulator.json"
EMULATOR = "qemu-aarch64"
EMULATOR_NAMES = (EMULATOR, f"{EMULATOR}-static")
EMULATOR_PACKAGE = "qemu-user-static"
PACKAGES = ("python3", "libstdc++6")
"""For arm64, with what they depend on: CPython; what libtvm_ffi.so needs."""
WHEEL_GLIBCS = range(17, 29)
"""Minor versions of glibc 2 that a wheel may be made for, none newer than what libraries are linked for."""
TIMEOUT_SECONDS = 300
ERROR_LINES = 8
APT = """\
APT::Architecture "amd64";
APT::Architectures {{ "amd64"; "arm64"; }};
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::Retries "2";
Dir::State "{root}/state";
Dir::State::status "{root}/status";
Dir::Cache "{root}/cache";
"""
TRIED_MODULES = ("click", "msgpack", "tvm_ffi", "zstandard")
SELF_TEST = """
import importlib, json, platform, sys
assert platform.machine() == "aarch64", platform.machine()
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps([platform.python_version(), ".".join(platform.libc_ver())]))
"""


class NotFetchedError(Exception):
    """There is no emulator, and why."""


def run(command: Sequence[str | Path], what: str, environment: Mapping[str, str] | None = None) -> str:
    """What a command prints.

    Raises:
        NotFetchedError: with its last words, if it fails.
    """
    words = [os.fspath(word) for word in command]
    try:
        done = subprocess.run(
            words,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotFetchedError(f"{what} failed: {error}") from None
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-ERROR_LINES:])
        raise NotFetchedError(f"{what} failed (exit status {done.returncode}):\n{said}")
    return done.stdout


def requirements() -> list[str]:
    """What this package needs at run time."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return sorted(project["dependencies"])


def expected() -> dict[str, Any]:
    """What decides what is fetched, but for what the distribution and the index have to offer."""
    constraints = (REPOSITORY / "constraints.txt").read_bytes()
    return {
        "script": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
        "constraints": hashlib.sha256(constraints).hexdigest(),
        "requirements": requirements(),
    }


def fetch_packages(root: Path, names: Sequence[str]) -> list[Path]:
    """Archives of the distribution's packages, with what they depend on.

    Raises:
        NotFetchedError: if there is no apt, no network, or no such package.
    """
    for directory in ("state/lists/partial", "cache/archives/partial"):
        (root / directory).mkdir(parents=True)
    (root / "status").touch()
    configuration = root / "apt.conf"
    configuration.write_text(APT.format(root=root), encoding="utf-8")
    environment = {"APT_CONFIG": os.fspath(configuration), "LC_ALL": "C"}
    run(["apt-get", "update"], "fetching the distribution's package lists", environment)
    command = ["apt-get", "install", "--yes", "--download-only", "--no-install-recommends", *names]
    run(command, "fetching packages of this machine's distribution", environment)
    return sorted((root / "cache" / "archives").glob("*.deb"))


def unpack(archives: Sequence[Path], made: Path) -> None:
    """The emulator, and the userland of arm64.

    Raises:
        NotFetchedError: if something cannot be unpacked, or the emulator is not there.
    """
    userland = made / "root"
    userland.mkdir()
    for archive in archives:
        if archive.name.endswith(("_arm64.deb", "_all.deb")):
            run(["dpkg-deb", "--extract", archive, userland], f"unpacking {archive.name}")
    emulators = [archive for archive in archives if archive.name.startswith("qemu-user")]
    if not any(take_emulator(archive, EMULATOR_NAMES, made / EMULATOR) for archive in emulators):
        raise NotFetchedError(f"there is no {EMULATOR} in the package {EMULATOR_PACKAGE}")
    # Distributions that keep everything below /usr have this link in a package that nothing here depends on.
    if not (userland / "lib").exists():
        (userland / "lib").symlink_to("usr/lib")


def take_emulator(archive: Path, names: Collection[str], to: Path) -> bool:
    """Take the one program that is needed out of a package that has one for every architecture."""
    command = ["dpkg-deb", "--fsys-tarfile", os.fspath(archive)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as unpacking,
        tarfile.open(fileobj=unpacking.stdout, mode="r|") as package,
    ):
        for member in package:
            stream = package.extractfile(member) if Path(member.name).name in names else None
            if stream is not None and member.isfile():
                # Beside it, then in place: where it is looked for it is whole, whatever ends this.
                part = to.with_name(f".{to.name}-{os.getpid()}")
                try:
                    with part.open("xb") as file:
                        shutil.copyfileobj(stream, file)
                    part.chmod(0o755)
                    part.rename(to)
                finally:
                    part.unlink(missing_ok=True)
                unpacking.terminate()
                return True
    return False


def fetch_emulator(name: str, directory: Path) -> None:
    """Put the emulator of another architecture, such as ``qemu-x86_64``, into a directory.

    Raises:
        NotFetchedError: if it cannot be fetched.
    """
    with tempfile.TemporaryDirectory(prefix=".emulator-", dir=directory) as temporary:
        archives = fetch_packages(Path(temporary), [EMULATOR_PACKAGE])
        if not any(take_emulator(path, (name, f"{name}-static"), directory / name) for path in archives):
            raise NotFetchedError(f"there is no {name} in the package {EMULATOR_PACKAGE}")


def install_wheels(to: Path, version: str, expected: Sequence[str]) -> None:
    """Unpack packages for aarch64 and a version of Python such as 3.11, with what they need.

    Raises:
        NotFetchedError: if there is no network, or no such wheel.
    """
    tags = ["manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in WHEEL_GLIBCS)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-compile", "--only-binary=:all:", "--python-version", version]
    command += [part for tag in tags for part in ("--platform", tag)]
    # Whole or not at all.
    with tempfile.TemporaryDirectory(prefix=".wheels-", dir=to.parent) as temporary:
        command += ["--target", os.fspath(Path(temporary) / "made")]
        command += ["--constraint", os.fspath(REPOSITORY / "constraints.txt"), *expected]
        run(command, "fetching wheels for aarch64")
        (Path(temporary) / "made").rename(to)


def emulator(directory: Path) -> list[str]:
    """How a program for aarch64 is called: the first words of a command."""
    return [os.fspath(directory / EMULATOR), "-L", os.fspath(directory / "root")]


def emulated(directory: Path) -> list[str]:
    """How the emulator's CPython is called: the first words of a command."""
    interpreter = (directory / "root" / "usr" / "bin" / "python3").resolve()
    return [*emulator(directory), os.fspath(interpreter)]


def fetch(directory: Path) -> dict[str, Any]:
    """Put an emulator into a directory; what it is.

    Raises:
        NotFetchedError: if something cannot be fetched, or does not run.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise NotFetchedError(
            f"it is for Linux on x86_64, this is {platform.system()} on {platform.machine()}"
        )
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    if missing:
        raise NotFetchedError(f"{missing[0]} was not found: this works on Debian and what is made from it")
    directory = directory.absolute()
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".emulator-", dir=directory.parent) as temporary:
        made = Path(temporary) / "made"
        made.mkdir()
        names = [EMULATOR_PACKAGE, *(f"{name}:arm64" for name in PACKAGES)]
        archives = fetch_packages(Path(temporary) / "apt", names)
        unpack(archives, made)
        command = emulated(made)
        version = run([*command, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], "a first run")
        install_wheels(made / "site", version.strip(), requirements())
        # Bytecode of what is imported stays there: to make it takes most of a start.
        environment = {"PYTHONPATH": os.fspath(made / "site"), "PYTHONDONTWRITEBYTECODE": ""}
        command += ["-s", "-c", SELF_TEST, *TRIED_MODULES]
        tried = json.loads(run(command, "a test of what was fetched", environment))
        record = {
            "wanted": expected(),
            "python": tried[0],
            "libc": tried[1],
            "emulator": run([made / EMULATOR, "--version"], "a first run").splitlines()[0],
            "packages": [path.name for path in archives if path.name.endswith(("_arm64.deb", "_all.deb"))],
            "wheels": sorted(path.name[: -len(".dist-info")] for path in (made / "site").glob("*.dist-info")),
        }
        (made / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        if directory.exists():
            shutil.rmtree(directory)
        made.rename(directory)
    return record


def present(directory: Path) -> dict[str, Any] | None:
    """What is in a directory, None if it is not what would be fetched now."""
    try:
        record: dict[str, Any] = json.loads((directory / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if record.get("wanted") == expected() else None


@click.command(help=__doc__)
@click.option("--directory", type=click.Path(path_type=Path), default=DIRECTORY, show_default=False)
def main(directory: Path) -> None:
    """Fetch it unless it is there, and say what it is."""
    record = present(directory)
    if record is None:
        try:
            record = fetch(directory)
        except NotFetchedError as error:
            raise click.ClickException(f"no emulator for aarch64: {error}") from None
    click.echo(
        f"{record['emulator']}; Python {record['python']}, {record['libc']}; {', '.join(record['wheels'])}"
    )


if __name__ == "__main__":
    main()
