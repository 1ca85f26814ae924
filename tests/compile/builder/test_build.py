"""Real builds without a GPU: the same bytes every time, nothing done twice, nothing lost."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cutlass_aot
from cutlass_aot.builder.link.kernel_object import KIND
from cutlass_aot.store.store import Store
from tests.compile.builder.conftest import MANIFEST
from tests.support.listings import listings
from tests.support.paths import REPOSITORY
from tests.support.verifying import verify_path
from tools.torture.other_files import KINDS, put

pytestmark = pytest.mark.compile

SMOKE = REPOSITORY / "manifests" / "smoke.toml"


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "cutlass_aot", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=300,
        check=False,
        **options,
    )


def contents(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def blobs(root):
    """Files of a store's blobs, and what they hold."""
    store = Store(root, create=False)
    return [(path, store.get_blob(sha256)) for sha256, path in store.blobs()]


def is_object(data):
    """Whether a blob is what compiling a kernel left."""
    return KIND.encode() in data


@pytest.fixture
def store(built, tmp_path):
    """A copy of the store, to be changed."""
    return shutil.copytree(built / "store", tmp_path / "store")


def test_no_path_of_this_machine_is_in_a_bundle(built):
    for name, data in contents(built / "out").items():
        assert str(REPOSITORY).encode() not in data, name
        assert str(built).encode() not in data, name


def test_a_second_build_compiles_nothing_and_imports_no_dsl(built):
    code = (
        "import sys\n"
        "from cutlass_aot.cli import main\n"
        "try:\n    main(sys.argv[1:])\nfinally:\n"
        "    heavy = {'cutlass', 'torch', 'tvm_ffi'} & set(sys.modules)\n"
        "    assert not heavy, heavy\n"
    )
    arguments = ["build", SMOKE, "--store", built / "store", "--out", built / "out"]
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "0 compiled, up to date" in result.stdout


def test_the_bundle_verifies_and_so_does_the_store(built):
    assert verify_path(built / "out" / "smoke") == []
    result = command("verify", built / "store")
    assert result.returncode == 0, result.stderr


def test_a_lost_bundle_comes_back_from_the_store(built, store, tmp_path):
    result = command("build", SMOKE, "--store", store, "--out", tmp_path / "out")
    assert "0 compiled, written" in result.stdout, result.stderr
    assert contents(tmp_path / "out" / "smoke") == contents(built / "out" / "smoke")


def test_a_damaged_object_is_built_again(many, tmp_path):
    store = shutil.copytree(many / "store", tmp_path / "store")
    records = sorted((store / "records" / "bundle").glob("*/*"))
    for record in records:
        record.unlink()
    plan = json.loads(command("plan", many / "m.toml", "--store", store, "--json").stdout)
    assert all(not kernel["build"] for kernel in plan["kernels"])
    victim = next(path for path, data in blobs(store) if is_object(data))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(bytes(data))
    assert command("verify", store).returncode == 1
    result = command("build", many / "m.toml", "--store", store, "--out", tmp_path / "out")
    assert "1 compiled, written" in result.stdout, result.stderr
    assert contents(tmp_path / "out" / "many") == contents(many / "out" / "many")


@pytest.mark.parametrize("share", [(), ("--shard", "1/2")])
def test_an_output_that_cannot_be_written_is_found_before_anything_compiles(tmp_path, share):
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "out"
    result = command("build", SMOKE, "--store", tmp_path / "store", "--out", out, *share)
    assert result.returncode == 1, result.stderr
    assert re.search("cannot write the bundle|cannot be written", result.stderr)
    assert "Not a directory" in result.stderr
    assert not (tmp_path / "store" / "records").exists()


def test_a_manifest_whose_plan_is_refused_leaves_nothing(tmp_path):
    (tmp_path / "m.toml").write_text(MANIFEST.replace('"16x16"', '"16x61"'))
    result = command(
        *("build", tmp_path / "m.toml", "--store", tmp_path / "store", "--out", tmp_path / "out"),
        *("--report", tmp_path / "pages" / "page.html"),
    )
    assert result.returncode == 2, result.stderr
    assert "no kernel is left" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["m.toml"]


def test_an_output_that_becomes_unwritable_is_found_before_anything_compiles(many, tmp_path):
    store, out = (shutil.copytree(many / name, tmp_path / name) for name in ("store", "out"))
    (out / "many" / "notes.txt").touch()
    shutil.rmtree(store / "records")
    result = command("build", many / "m.toml", "--store", store, "--out", out)
    assert result.returncode == 1, result.stderr
    assert "notes.txt" in result.stderr
    assert not (store / "records" / "kernel").exists()


def test_a_build_leaves_nothing_beside_its_bundle(built):
    assert [path.name for path in (built / "out").iterdir()] == ["smoke"]


@pytest.mark.parametrize("turn", [0, 3])
def test_a_build_waits_for_nothing_and_repairs_everything(many, tmp_path, turn):
    """Something else stands for a file of each kind; the up-to-date check meets one in the bundle.

    Each kind stands in some places; ``tests/unit/store/test_other_files.py`` puts each into all of a store.
    """
    kinds = itertools.islice(itertools.cycle(KINDS), turn, None)
    store, out = (shutil.copytree(many / name, tmp_path / name) for name in ("store", "out"))
    arguments = ("build", many / "m.toml", "--store", store, "--out", out)
    assert command(*arguments).returncode == 0
    put(next(kinds), out / "many" / "catalog.msgpack")
    for name in ("blobs/sha256", "records/kernel", "records/library", "records/plan", "records/bundle"):
        put(next(kinds), min((store / name).glob("*/*")))
    for name in ("durations", "locks", "roots/many"):
        put(next(kinds), store / name)
    result = command(*arguments)
    assert result.returncode == 0, result.stderr
    assert contents(out / "many") == contents(many / "out" / "many")
    assert command("verify", store).returncode == 0


def test_blackwell_code_uses_its_tensor_cores(built):
    texts = {}
    for text in listings([data for _, data in blobs(built / "store") if is_object(data)]):
        kind = "UTCHMMA" if "UTCHMMA" in text else "HGMMA" if "HGMMA" in text else "DFMA"
        texts[kind] = texts.get(kind, 0) + (kind in text)
    assert texts == {"UTCHMMA": 2, "HGMMA": 1, "DFMA": 2}


def test_a_description_is_found_a_kernel_and_not_launched_on(built):
    bundle = cutlass_aot.open(built / "out" / "smoke")
    a = cutlass_aot.describe((64, 64), "f64")
    b = cutlass_aot.describe((64, 64), "f64", strides=(1, 64))
    (kernel,) = bundle.find(a, b, a, target="sm_90a")
    with pytest.raises(cutlass_aot.errors.OperandError, match="a description without memory"):
        kernel.launch(a, b, a)


PLUGIN = """
import os

from cutlass_aot.generators.registry import register
from cutlass_aot.generators.simt_f64_gemm.generator import SimtF64Gemm


@register
class Flaky(SimtF64Gemm):
    name = "flaky"

    def enumerate(self, problem, target, device):
        from dataclasses import replace

        for kernel in super().enumerate(problem, target, device):
            yield replace(kernel, generator=self.name)

    def compile(self, kernel):
        from dataclasses import replace

        if dict(kernel.design)["tile_shape"][0] == 32:
            os.abort()
        return super().compile(replace(kernel, generator=SimtF64Gemm.name))
"""


def flaky(tmp_path, monkeypatch, name="flaky_plugin"):
    (tmp_path / f"{name}.py").write_text(PLUGIN)
    manifest = tmp_path / "flaky.toml"
    manifest.write_text(
        f'plugins = ["{name}"]\n[bundle]\nname = "flaky"\ntargets = ["sm_80"]\ndevice = "h200"\n'
        '[[kernels]]\ngenerator = "flaky"\nab = "f64"\n'
    )
    return manifest, {**os.environ, "PYTHONPATH": str(tmp_path)}


def test_a_kernel_that_crashes_the_compiler_fails_alone(tmp_path, monkeypatch):
    manifest, environment = flaky(tmp_path, monkeypatch)
    arguments = ("build", manifest, "--store", tmp_path / "store", "--out", tmp_path / "out")
    result = command(*arguments, env=environment)
    assert result.returncode == 1
    assert "1 kernel of 2 failed" in result.stderr
    assert "the compiler crashed (signal 6)" in result.stderr
    log = re.search(r"log: (.*\.txt)", result.stderr)
    assert log is not None
    assert "key " in Path(log.group(1)).read_text()
    assert not (tmp_path / "out" / "flaky").exists()
    # The other is in the store: the next build tries the failed one alone.
    again = command(*arguments, env=environment)
    assert "plan: 1 kernel to build, 1 present" in again.stderr


def test_an_interrupted_build_goes_on_where_it_stopped(tmp_path):
    (tmp_path / "m.toml").write_text(MANIFEST)
    places = ["--store", tmp_path / "store", "--out", tmp_path / "out"]
    arguments = ["build", tmp_path / "m.toml", *places, "-j", "1"]
    with subprocess.Popen(
        [sys.executable, "-m", "cutlass_aot", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY,
    ) as process:  # fmt: skip
        records = tmp_path / "store" / "records" / "kernel"
        deadline = time.monotonic() + 120
        while not list(records.glob("*/*")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; what was compiled is in the store" in errors
    assert "Traceback" not in errors
    kept = len(list(records.glob("*/*")))
    assert not (tmp_path / "out" / "many").exists()
    # A worker that is being ended may still write into the folder of the build while it is removed.
    assert [path for path in (tmp_path / "store" / "tmp").iterdir() if not path.is_dir()] == []
    assert list((tmp_path / "store" / "locks").iterdir()) == []
    result = command(*arguments)
    assert f"{5 - kept} compiled, written" in result.stdout, result.stderr
