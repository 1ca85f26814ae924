"""Install wheels with releases of pip, uv and installer: what verifies gives the same files with each.

    python -m tools.check.installers BUNDLE [--installer NAME==VERSION]

BUNDLE is a sound bundle (the manifest ``smoke``). Its wheel, signed and not, and wheels of the same files
that are made in other ways (modes, dates, order, compression) are verified and, if they are good, installed
by each installer, from the disk and from a server on this machine, as some unpack what they fetch while it
comes: the files have to be those that RECORD lists, to the byte. Then come wheels that hold more than their
index lists, or disagree with it (``tools/fuzz/zips.py``): ``verify`` has to refuse each, and what installers
do with it is shown.

Installers are fetched from the package index, each into a directory of its own. Prints a table in Markdown;
exits with 1 if a wheel that verifies gave other files or none, or if one of the others verified.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click

from cutlass_aot.bundle.sign import KeyFile, new_key, sign_bundle
from cutlass_aot.bundle.wheel.verify import look_at_wheel
from cutlass_aot.bundle.wheel.write import build_wheels, record_digest
from cutlass_aot.schema.encoding import digest
from tools.bench.command import markdown
from tools.fuzz.zips import HIDDEN

INSTALLERS = (
    "pip==21.3.1", "pip==22.3.1", "pip==23.3.2", "pip==24.3.1", "pip==25.3", "pip==26.3",
    "uv==0.4.30", "uv==0.5.31", "uv==0.6.17", "uv==0.7.22", "uv==0.8.5", "uv==0.8.6", "uv==0.9.30",
    "uv==0.13.9",
    "installer==0.5.1", "installer==0.6.0", "installer==0.7.0", "installer==1.1.0",
)  # fmt: skip
_OWN = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
"""Files of the metadata that installers write themselves."""
SAME, REFUSED = "the same files", "refused"
_SERVED = " from a server"


def made_otherwise(wheel: bytes) -> dict[str, bytes]:
    """Wheels of the same files, made in other ways."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        files = [(info, archive.read(info)) for info in archive.infolist()]

    def made(order: int = 1, **values: object) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for old, data in files[::order]:
                info = zipfile.ZipInfo(old.filename, old.date_time)
                info.compress_type, info.create_system = old.compress_type, old.create_system
                info.external_attr = old.external_attr
                for name, value in values.items():
                    setattr(info, name, value)
                archive.writestr(info, data)
        return out.getvalue()

    return {
        "all files stored": made(compress_type=zipfile.ZIP_STORED),
        "all files deflated": made(compress_type=zipfile.ZIP_DEFLATED),
        "executable files": made(external_attr=0o100755 << 16),
        "files without modes": made(external_attr=0, create_system=0),
        "files of another day": made(date_time=(2026, 11, 24, 1, 2, 4)),
        "files in another order": made(order=-1),
    }


def installed(tool: Path, kind: str, wheel: Path, address: str, folder: Path) -> str:
    """Install a wheel below a folder with a tool that is in a directory: what came of it.

    ``kind`` is ``pip``, ``uv`` or ``installer``; ``address`` is the wheel's path, or its place at a server.
    """
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PIP_", "UV_", "PYTHON")) and not key.lower().endswith("_proxy")
    }
    target = folder / "target"
    command = {
        "pip": [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-compile",
                "--disable-pip-version-check", "--no-cache-dir", "--target", str(target), address],
        "uv": [str(tool / "bin" / "uv"), "pip", "install", "--no-deps", "--no-index", "--no-cache",
               "--python", sys.executable, "--target", str(target), address],
        "installer": [sys.executable, "-m", "installer", "--destdir", str(target), address],
    }[kind]  # fmt: skip
    done = subprocess.run(
        command, env={**kept, "PYTHONPATH": str(tool)}, cwd=folder, capture_output=True, check=False
    )
    return REFUSED if done.returncode else _difference(listed_in(wheel), _files(target))


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine until the end of the block, at the address that this gives."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_arguments: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_arguments: object) -> None:
            """Some installers hang up when they have seen enough."""

    handler = functools.partial(Quiet, directory=str(folder))
    with Server(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def _files(target: Path) -> dict[str, str]:
    """Installed files, by their paths beside the package, with digests; without what installers write."""
    (metadata,) = target.rglob("*.dist-info")
    found = {}
    for path in sorted(target.rglob("*")):
        own = path.parent == metadata and path.name in _OWN
        if path.is_file() and path.suffix != ".pyc" and not own and path.name != ".lock":
            name = os.path.relpath(path, metadata.parent)
            found[name] = record_digest(bytes.fromhex(digest(path.read_bytes())))
    return found


def listed_in(wheel: Path) -> dict[str, str]:
    """The files that RECORD lists, with their digests."""
    with zipfile.ZipFile(wheel) as archive:
        (record,) = (name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
        rows = list(csv.reader(io.StringIO(archive.read(record).decode())))
    return {path: sha256 for path, sha256, _ in rows if path != record}


def _difference(expected: Mapping[str, str], found: Mapping[str, str]) -> str:
    if more := sorted(set(found) - set(expected)):
        return f"{more[0]} too"
    if missing := sorted(set(expected) - set(found)):
        return f"without {missing[0].rpartition('/')[2]}"
    return SAME if expected == found else "other bytes"


def wheels(bundle: Path, folder: Path) -> tuple[dict[str, Path], dict[str, Path]]:
    """Wheels that are to be installed if they verify, and wheels that must not verify."""
    own = shutil.copytree(bundle, folder / "bundle")
    shutil.rmtree(own / "signatures", ignore_errors=True)
    (plain,) = build_wheels(own, folder / "plain")
    new_key(folder / "key")
    sign_bundle(own, KeyFile(folder / "key", lambda: ""))
    (signed,) = build_wheels(own, folder / "signed")
    data = signed.read_bytes()

    def written(kind: str, changed: Mapping[str, bytes]) -> dict[str, Path]:
        found = {}
        for number, (what, content) in enumerate(changed.items()):
            found[what] = folder / f"{kind}-{number}" / signed.name
            found[what].parent.mkdir()
            found[what].write_bytes(content)
        return found

    good = {"the wheel": plain, "the wheel, signed": signed, **written("good", made_otherwise(data))}
    return good, written("hidden", {what: change(data) for what, change in HIDDEN.items()})


def _told(outcomes: Mapping[tuple[str, str, str], str]) -> str:
    """What came of a wheel, by outcome: the installers, with their releases where these differ.

    Outcomes are by an installer's name, its release, and whether the wheel was on a server.
    """
    by_tool = Counter((tool, place) for tool, _, place in outcomes)
    found: dict[str, list[str]] = {}
    for (tool, place), count in by_tool.items():
        own = {key[1]: said for key, said in outcomes.items() if (key[0], key[2]) == (tool, place)}
        for said in dict.fromkeys(own.values()):
            at = [number for number, result in enumerate(own.values()) if result == said]
            releases = [list(own)[number] for number in at]
            if len(at) > 1 and at[-1] - at[0] == len(at) - 1:
                releases = [f"{releases[0]} to {releases[-1]}"]
            every = "" if len(at) == count else f" {', '.join(releases)}"
            found.setdefault(said, []).append(f"{tool}{place}{every}")
    if list(found) == [SAME]:
        return f"{SAME}, by all"
    return "; ".join(f"{said}: {', '.join(names)}" for said, names in sorted(found.items()))


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.option("--installer", "names", multiple=True, help="This one, such as uv==0.8.5; repeatable.")
def main(bundle: Path, names: Sequence[str]) -> None:
    """Install wheels with many installers."""
    wrong, rows = [], []
    names = names or INSTALLERS
    with tempfile.TemporaryDirectory(prefix="installers-") as temporary:
        folder = Path(temporary)
        for name in names:
            fetch = ["install", "--quiet", "--no-deps", "--disable-pip-version-check"]
            subprocess.run(
                [sys.executable, "-m", "pip", *fetch, "--target", str(folder / name), name], check=True
            )
        good, hidden = wheels(bundle, folder)
        with serving(folder) as server:
            for what, wheel in [*good.items(), *hidden.items()]:
                sound = not look_at_wheel(wheel).problems
                outcomes = {}
                for name in names:
                    tool, _, release = name.partition("==")
                    places = {"": str(wheel), _SERVED: f"{server}/{wheel.relative_to(folder)}"}
                    # The package installer takes files alone.
                    for place in ("",) if tool == "installer" else places:
                        scratch = Path(tempfile.mkdtemp(dir=folder))
                        outcomes[tool, release, place] = installed(
                            folder / name, tool, wheel, places[place], scratch
                        )
                        shutil.rmtree(scratch)
                if sound and (what in hidden or set(outcomes.values()) != {SAME}):
                    wrong.append(f"{what}: {outcomes}")
                rows.append((what, "good" if sound else "refused", _told(outcomes)))
    if not any(verdict == "good" for _, verdict, _ in rows):
        wrong.append("no wheel verified")
    click.echo(f"Python {platform.python_version()}; {', '.join(names)}\n")
    click.echo(markdown(("wheel", "verify", "installed"), rows))
    for text in wrong:
        click.echo(f"wrong: {text}", err=True)
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
