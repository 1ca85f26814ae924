"""Build a manifest several times in different surroundings, and compare bundles and wheels byte by byte.

    python -m tools.check.reproducible [--manifest FILE] [--builds N] [--keep DIR]

No GPU is needed. Each build has a store and a directory of its own, and differs from the first in everything
that must not matter: directories, number of workers, order of compiling, hash seed, time zone, locale, umask,
clock (also one that goes backwards), ``SOURCE_DATE_EPOCH`` while the bundle is built, and whether it was
interrupted and gone on with. Workers live in the same surroundings as their builder.

Prints a table of what varied, with the digests, and exits with 1 if anything differs: files of the bundle and
their modes, or the wheel, the first of them by name.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from tools.bench.command import markdown
from tools.torture.faults import compile_shim, write_interpreter

REPOSITORY = Path(__file__).resolve().parents[2]
EVERYWHERE = ("C", "POSIX", "C.UTF-8")
"""Locales that the C library has without files."""
ZIP_EPOCH = "315532800"
"""The date of a wheel's files when SOURCE_DATE_EPOCH is not set: 1980-01-01, where zip's calendar begins."""


@dataclass(frozen=True)
class Surroundings:
    """What must not show in a build.

    Attributes:
        directory: where it happens, below the scratch directory; the builder's working directory too.
        jobs: workers.
        order: seed of the order in which kernels are handed to workers; None leaves the builder's own.
        interrupted: whether it is interrupted after the first kernel, and begun again.
        hash_seed: PYTHONHASHSEED.
        zone: TZ.
        locale: LC_ALL.
        umask: of the builder.
        clock: FAULTS_CLOCK of faults.c; empty leaves the machine's.
        epoch: SOURCE_DATE_EPOCH while the bundle is built.
    """

    directory: str
    jobs: int
    order: int | None
    interrupted: bool
    hash_seed: str
    zone: str
    locale: str
    umask: int
    clock: str
    epoch: str


_YEAR = 365 * 86400
BUILDS = (
    Surroundings("a", 1, None, False, "0", "UTC", "C.UTF-8", 0o022, "", ""),
    Surroundings(
        "another place, far away/ü/b", 2, 1, False, "12345", "Asia/Kathmandu", "tr_TR.UTF-8", 0o077,
        f"{-30 * _YEAR},{-31 * _YEAR},1", "1",
    ),
    Surroundings(
        "c/" + "deep/" * 20 + "c", 3, 2, True, "99", "America/St_Johns", "C", 0o027,
        f"{20 * _YEAR},{20 * _YEAR},0", "4000000000",
    ),
    Surroundings("d", 2, 3, True, "4294967295", "Pacific/Kiritimati", "POSIX", 0o002, "-5,5,1", "0"),
)  # fmt: skip


@dataclass(frozen=True)
class Built:
    """What a build gave.

    Attributes:
        files: file of the bundle to its mode and digest.
        wheel: name, mode and digest of the wheel.
        order: digest of the order in which kernels were finished.
        compiled: how many were compiled.
        seconds: wall time, of both runs where it was interrupted.
    """

    files: dict[str, str]
    wheel: tuple[str, str]
    order: str
    compiled: int
    seconds: float

    def everything(self) -> dict[str, str]:
        """Files of the bundle, and the wheel."""
        return {**self.files, self.wheel[0]: self.wheel[1]}

    @property
    def bundle_digest(self) -> str:
        """One digest of all files of the bundle."""
        return _digest("\n".join(f"{name} {self.files[name]}" for name in sorted(self.files)).encode())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def describe_files(paths: Iterable[Path], root: Path) -> dict[str, str]:
    """Name below ``root`` to mode and digest, of files."""
    return {
        path.relative_to(root).as_posix(): f"{path.stat().st_mode & 0o7777:o} {_digest(path.read_bytes())}"
        for path in paths
        if path.is_file()
    }


def first_difference(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """The first file, by name, that is not the same in both, and how it differs; ``""`` if there is none."""
    for name in sorted({*one, *other}):
        if one.get(name) != other.get(name):
            return f"{name}: {one.get(name, 'absent')} and {other.get(name, 'absent')}"
    return ""


# ---- in a builder ----------------------------------------------------------------------------------------


def build_once(surroundings: Surroundings, manifest: Path, interpreter: str) -> dict[str, Any]:
    """Build in the working directory and pack a wheel; the process is a builder's and nothing else's."""
    from cutlass_aot.builder import events
    from cutlass_aot.builder.build import build
    from cutlass_aot.builder.compile.pool import Pool
    from cutlass_aot.builder.settings import Settings
    from cutlass_aot.bundle.wheel.write import build_wheels

    sys.executable = interpreter
    os.umask(surroundings.umask)
    if surroundings.order is not None:
        _shuffle(Pool, surroundings.order)
    finished: list[str] = []
    interrupt = surroundings.interrupted

    def tell(event: events.Event) -> None:
        nonlocal interrupt
        if isinstance(event, events.Compiled):
            finished.append(event.kernel.name)
            if interrupt:
                interrupt = False
                raise KeyboardInterrupt
        if isinstance(event, events.Failed):
            print(event.failure.kernel.name, event.failure.reason, file=sys.stderr)

    def run() -> Path:
        settings = Settings(Path("store"), surroundings.jobs, 600.0, tell)
        result = build(manifest, Path("out"), settings)
        if result.failures:
            raise SystemExit(f"{len(result.failures)} kernels failed")
        return result.bundle

    start = time.monotonic()
    try:
        bundle = run()
    except KeyboardInterrupt:
        bundle = run()
    seconds = time.monotonic() - start
    # The wheel's files bear SOURCE_DATE_EPOCH, by design: here the one that they have without it.
    os.environ.pop("SOURCE_DATE_EPOCH", None)
    if surroundings.epoch:
        os.environ["SOURCE_DATE_EPOCH"] = ZIP_EPOCH
    (wheel,) = build_wheels(bundle, Path("wheels"))
    ((name, described),) = describe_files([wheel], wheel.parent).items()
    built = Built(
        files=describe_files(bundle.rglob("*"), bundle),
        wheel=(name, described),
        order=_digest("\n".join(finished).encode()),
        compiled=len(finished),
        seconds=seconds,
    )
    return asdict(built)


def _shuffle(pool: Any, seed: int) -> None:
    """Have a pool take its jobs in another order: it begins with those that it expects to take longest."""
    run = pool.run
    rng = random.Random(seed)  # noqa: S311

    def run_shuffled(self: Any, jobs: Iterable[Any], *rest: Any, **named: Any) -> Iterator[Any]:
        expected = [replace(job, seconds=rng.uniform(0.1, 10)) for job in jobs]
        yield from run(self, expected, *rest, **named)

    pool.run = run_shuffled


# ---- beside it -------------------------------------------------------------------------------------------


def have_locale(name: str, directory: Path) -> bool:
    """Make a locale below ``directory``, the LOCPATH that it is for; False if the system cannot."""
    if name in EVERYWHERE:
        return True
    language, _, charset = name.partition(".")
    command = ["localedef", "-i", language, "-f", charset, str(directory / name)]
    try:
        # Its exit status tells of warnings too.
        subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return (directory / name).is_dir()


def run_build(surroundings: Surroundings, manifest: Path, scratch: Path, shim: Path) -> Built:
    """Build in a process of its own.

    Raises:
        click.ClickException: with what the builder said, if it fails.
    """
    place = scratch / surroundings.directory
    place.mkdir(parents=True)
    (place / "tmp").mkdir()
    varied = {
        "PYTHONHASHSEED": surroundings.hash_seed,
        "TZ": surroundings.zone,
        "LANG": surroundings.locale,
        "LC_ALL": surroundings.locale,
        "LOCPATH": str(scratch) if surroundings.locale not in EVERYWHERE else "",
        "TMPDIR": str(place / "tmp"),
        "HOME": str(place),
        "FAULTS_CLOCK": surroundings.clock,
        "LD_PRELOAD": str(shim) if surroundings.clock else "",
        "SOURCE_DATE_EPOCH": surroundings.epoch,
        # What these locales mean, and not what the interpreter would rather have.
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONUTF8": "0" if surroundings.locale != "C.UTF-8" else "",
    }
    interpreter = write_interpreter(place / "python", varied)
    environment = {name: text for name, text in os.environ.items() if name not in varied}
    task = {"surroundings": asdict(surroundings), "manifest": str(manifest), "interpreter": str(interpreter)}
    done = subprocess.run(
        [str(interpreter), str(Path(__file__).resolve()), "--worker"],
        cwd=place,
        env={**environment, **{name: text for name, text in varied.items() if text}},
        input=json.dumps(task).encode(),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise click.ClickException(
            f"the build in {surroundings} failed:\n{done.stderr.decode('utf-8', 'replace')}"
        )
    answer = json.loads(done.stdout)
    return Built(**{**answer, "wheel": tuple(answer["wheel"])})


def shorten(text: str) -> str:
    """The two ends of a text that is long, in ASCII, for any terminal."""
    text = text.encode("ascii", "replace").decode("ascii")
    return text if len(text) <= 30 else f"{text[:13]}...{text[-13:]}"


def table(rows: Sequence[tuple[Surroundings, Built]]) -> str:
    """What varied and what came of it, as Markdown. Digests are shortened."""
    columns = (
        "build in", "workers", "order", "interrupted", "hash seed", "time zone", "locale", "umask",
        "clock, s", "epoch", "compiled", "s", "bundle", "wheel",
    )  # fmt: skip
    lines = [
        (
            shorten(where.directory), where.jobs, built.order[:6], "yes" if where.interrupted else "no",
            where.hash_seed, where.zone, where.locale, f"{where.umask:03o}",
            where.clock.replace(",", ", ") or "right", where.epoch or "unset", built.compiled,
            f"{built.seconds:.0f}", built.bundle_digest[:16], built.wheel[1].split()[1][:16],
        )
        for where, built in rows
    ]  # fmt: skip
    return markdown(columns, lines)


@click.command()
@click.option(
    "--manifest",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=REPOSITORY / "manifests" / "smoke.toml",
    show_default="manifests/smoke.toml",
    help="What to build.",
)
@click.option(
    "--builds",
    type=click.IntRange(2, len(BUILDS)),
    default=len(BUILDS),
    show_default=True,
    help="How many builds; two already differ in everything but the interruption.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Build in this directory, which must not exist, and leave it there.",
)
@click.option("--worker", is_flag=True, hidden=True)
def main(manifest: Path, builds: int, keep: Path | None, worker: bool) -> None:
    """Build a manifest several times in different surroundings, and compare bundles and wheels."""
    if worker:
        task = json.load(sys.stdin)
        where = Surroundings(**task["surroundings"])
        print(json.dumps(build_once(where, Path(task["manifest"]), task["interpreter"])))
        return
    scratch = keep or Path(tempfile.mkdtemp(prefix="reproducible-"))
    if keep:
        keep.mkdir(parents=True)
    scratch = scratch.resolve()
    try:
        shim = compile_shim(scratch)
        rows: list[tuple[Surroundings, Built]] = []
        for where in BUILDS[:builds]:
            if not have_locale(where.locale, scratch):
                click.echo(f"locale {where.locale} cannot be made here: POSIX instead", err=True)
                where = replace(where, locale="POSIX")
            rows.append((where, run_build(where, manifest.resolve(), scratch, shim)))
    finally:
        if not keep:
            shutil.rmtree(scratch, ignore_errors=True)
    click.echo(table(rows))
    reference = rows[0][1].everything()
    click.echo(f"\n{len(reference) - 1} files of the bundle and the wheel, with their modes, in each build.")
    for number, (_, built) in enumerate(rows[1:], start=2):
        difference = first_difference(reference, built.everything())
        if difference:
            click.echo(f"build {number} differs from the first in {difference}", err=True)
            sys.exit(1)
    click.echo("All are the same, to the byte.")


if __name__ == "__main__":
    main()
