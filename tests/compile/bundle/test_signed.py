"""A bundle that was really built, signed: builds leave its signatures alone, and every byte of it counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_aot.bundle.verify.directory import Findings
from cutlass_aot.bundle.verify.path import look_at
from cutlass_aot.bundle.wheel.write import build_wheels
from cutlass_aot.runtime.files.signatures import read_public_keys
from tests.support.signing import make_key

pytestmark = pytest.mark.compile
pytest.importorskip("cryptography")

MANIFEST = """
[bundle]
name = "signed"
version = "{version}"
targets = ["sm_90a"]
device = "h200"

[[kernels]]
generator = "simt_f64_gemm"
ab = ["f64"]
max_per_group = 1
"""


def run(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cutlass_aot", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a manifest, keys, and a store and a bundle that were built from it."""
    folder = tmp_path_factory.mktemp("signed")
    (folder / "m.toml").write_text(MANIFEST.format(version="1.0.0"))
    key = make_key(folder, 1)
    for arguments in (("build", "m.toml", "-j", 1), ("sign", "build/bundles/signed", "--key", key.path)):
        done = run(folder, *arguments)
        assert done.returncode == 0, done.stderr
    return folder


def test_a_build_with_nothing_to_do_leaves_signatures(signed: Path) -> None:
    # The first looks at everything again, because a folder is new; the second is answered by its note.
    for _ in range(2):
        assert "0 compiled, up to date" in run(signed, "build", "m.toml").stdout
    done = run(signed, "verify", "build/bundles/signed", "--key", "key-1.pub")
    assert done.returncode == 0, done.stderr


def test_another_version_is_written_without_them(signed: Path, tmp_path: Path) -> None:
    (signed / "later.toml").write_text(MANIFEST.format(version="1.0.1"))
    done = run(signed, "build", "later.toml", "--out", tmp_path)
    assert "0 compiled, written" in done.stdout, done.stderr
    bundle = tmp_path / "signed"
    assert run(signed, "sign", bundle, "--key", "key-1").returncode == 0
    done = run(signed, "build", "m.toml", "--out", tmp_path)
    assert "0 compiled, written" in done.stdout, done.stderr
    assert not (bundle / "signatures").exists()
    done = run(signed, "verify", bundle, "--key", "key-1.pub")
    assert (done.returncode, "no right signature" in done.stderr) == (3, True)


def test_one_flipped_byte_of_any_file_is_found(signed: Path) -> None:
    bundle = signed / "build" / "bundles" / "signed"
    keys = read_public_keys([signed / "key-1.pub"])
    files = sorted(path for path in bundle.rglob("*") if path.is_file())
    assert len(files) >= 8
    for file in files:
        good = file.read_bytes()
        try:
            for position in {0, len(good) // 2, len(good) - 1}:
                bad = bytearray(good)
                bad[position] ^= 1
                file.write_bytes(bad)
                assert look_at(bundle, keys).problems, (file, position)
        finally:
            file.write_bytes(good)
    assert look_at(bundle, keys) == Findings([], [keys[0].id])


def test_the_wheel_is_signed_and_the_environment_asks_for_it(signed: Path, tmp_path: Path) -> None:
    bundle = signed / "build" / "bundles" / "signed"
    keys = read_public_keys([signed / "key-1.pub"])
    (wheel,) = build_wheels(bundle, tmp_path)
    assert look_at(wheel, keys) == Findings([], [keys[0].id])
    make_key(tmp_path, 2)
    for name, status in (("key-1.pub", 0), (tmp_path / "key-2.pub", 3)):
        environment = {**os.environ, "CUTLASS_AOT_TRUSTED_KEYS": str(name)}
        done = subprocess.run(
            [sys.executable, "-m", "cutlass_aot", "ls", "build/bundles/signed"],
            cwd=signed, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
