"""Bundles in several wheels: one for each host, and one for each target."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import cutlass_aot
from cutlass_aot.bundle.plan import BundlePlan, GroupPlan, PackedFile
from cutlass_aot.bundle.sign import KeyFile
from cutlass_aot.bundle.verify.directory import require_sound
from cutlass_aot.bundle.verify.path import look_at
from cutlass_aot.bundle.wheel.split import by_target, for_host
from cutlass_aot.bundle.wheel.write import build_wheels
from cutlass_aot.bundle.write import write_bundle
from cutlass_aot.cli import main
from cutlass_aot.errors import BundleError
from cutlass_aot.runtime.files.signatures import read_public_key
from cutlass_aot.runtime.files.verified_read import read_catalog
from cutlass_aot.schema.kernels.kernel import Kernel
from tests.support.flips import flipped
from tests.support.replace import replace
from tests.support.signing import make_key
from tests.support.synthetic import exports, group, kernels, launcher, packed, plan, ranking, shared_object
from tests.support.verifying import verify_path, verify_wheel

TARGETS = ("sm_100a", "sm_103a", "sm_90a")
MACHINES = {"aarch64": 183, "x86_64": 62}
PLATFORM = "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
"""Of a variant: nothing in the tests' libraries asks for more, whatever the bundle promises."""
PAD = 120_000
"""Bytes of code that make a group of the tests large."""


def members(target: str, dtype: str) -> tuple[Kernel, ...]:
    return kernels(target=target, dtypes=(dtype,) * 3)


def for_hosts(folder: Path, made: GroupPlan, hosts: tuple[str, ...]) -> GroupPlan:
    """The same group, with a library for each host."""
    symbols = exports([entry.kernel for entry in made.entries])
    return replace(
        made,
        libraries={
            host: (
                replace(
                    packed(
                        folder,
                        f"{made.name}-{host}",
                        "so.zst",
                        shared_object(symbols, machine=MACHINES[host]),
                    ),
                    name=made.name,
                ),
            )
            for host in hosts
        },
    )


def padded(folder: Path, made: GroupPlan, size: int) -> GroupPlan:
    """The same group with code that zstd cannot compress behind that of its kernels."""
    codes = b"".join(f"GPU code of {entry.kernel.digest}".encode() for entry in made.entries)
    return replace(made, code=packed(folder, made.name, "zst", codes + os.urandom(size)))


def whole(
    folder: Path,
    *,
    hosts: tuple[str, ...] = ("x86_64",),
    targets: tuple[str, ...] = TARGETS,
    pad: int = 0,
    **changes: Any,
) -> BundlePlan:
    """A bundle of two groups a target."""
    linked = folder / "linked"
    linked.mkdir(parents=True, exist_ok=True)
    all_members = [members(target, dtype) for target in targets for dtype in ("f16", "bf16")]
    groups = [for_hosts(linked, group(linked, own), hosts) for own in all_members]
    if pad:
        groups = [padded(linked, item, pad) for item in groups]
    launchers = {
        host: replace(launcher(linked, f"launcher-{host}", machine=MACHINES[host])) for host in hosts
    }
    fields: dict[str, Any] = {
        "targets": targets,
        "hosts": hosts,
        "groups": tuple(groups),
        "launchers": launchers,
        "rankings": tuple(ranking(own) for own in all_members),
    }
    # What plan makes itself has other names in its folder than these.
    return plan(folder / "plan", **{**fields, **changes})


def write(folder: Path, **options: Any) -> Path:
    write_bundle(whole(folder, **options), folder / "bundle")
    return folder / "bundle"


def names(wheels: list[Path]) -> list[str]:
    return [wheel.name.removeprefix("cutlass_aot_bundle_") for wheel in wheels]


def headers(wheel: Path, name: str = "METADATA") -> Any:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [item for item in archive.namelist() if item.endswith(f".dist-info/{name}")]
        return email.message_from_bytes(archive.read(path))


def unpacked(wheel: Path, folder: Path) -> Path:
    """Where the bundle of a wheel lies once it is unpacked."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / wheel.stem)
    (bundle,) = (folder / wheel.stem).glob("*/bundle")
    return bundle


# -- hosts --------------------------------------------------------------------------------------------------


def test_a_bundle_for_two_hosts_gives_two_wheels(tmp_path: Path) -> None:
    bundle = write(tmp_path, hosts=("x86_64", "aarch64"))
    wheels = build_wheels(bundle, tmp_path / "wheels")
    assert names(wheels) == [
        # Nothing in these libraries asks for more than the oldest glibc.
        "small-0.1.0-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.whl",
        "small-0.1.0-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    ]
    for wheel, host in zip(wheels, ("aarch64", "x86_64"), strict=True):
        assert verify_wheel(wheel) == []
        assert headers(wheel, "WHEEL").get_all("Tag") == [
            f"py3-none-manylinux_2_17_{host}",
            f"py3-none-manylinux2014_{host}",
        ]
        inside = unpacked(wheel, tmp_path)
        assert verify_path(inside) == []
        assert read_catalog(inside).hosts == (host,)
        assert [path.name for path in (inside / "lib").iterdir()] == [host]
        assert len(list((inside / "code").iterdir())) == len(list((bundle / "code").iterdir()))


def test_the_tag_is_never_below_what_a_library_needs(tmp_path: Path) -> None:
    made = for_host(whole(tmp_path, hosts=("x86_64", "aarch64")), "x86_64")
    assert made.requirements.glibc == "2.17"
    assert for_host(made, "x86_64") is made


@pytest.mark.parametrize("hosts", [("x86_64",), ("x86_64", "aarch64")])
def test_a_variant_needs_what_its_own_libraries_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: tuple[str, ...]
) -> None:
    """However many hosts the bundle has: what another target's libraries need does not count."""
    bundle = write(tmp_path, hosts=hosts, targets=("sm_90a", "sm_100a"))

    def needed(library: object, what: str) -> tuple[int, int]:
        return (2, 28) if "sm_100a" in what else (2, 5)

    for module in ("verify.directory", "glibc"):
        monkeypatch.setattr(f"cutlass_aot.bundle.{module}.needed_glibc", needed)
    wheels = build_wheels(bundle, tmp_path / "wheels", split=True)
    assert {name.rpartition("-")[2] for name in names(wheels) if "sm90a" in name} == {
        f"manylinux_2_17_{host}.manylinux2014_{host}.whl" for host in hosts
    }
    assert {name.rpartition("-")[2] for name in names(wheels) if "sm100a" in name} == {
        f"manylinux_2_28_{host}.whl" for host in hosts
    }
    assert all(verify_wheel(wheel) == [] for wheel in wheels)


def test_a_library_that_needs_more_than_its_bundle_promises_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = write(tmp_path)
    monkeypatch.setattr("cutlass_aot.bundle.verify.directory.needed_glibc", lambda library, what: (2, 30))
    problems = verify_path(bundle)
    assert {problem.found for problem in problems} == {"symbols of glibc 2.30"}
    with pytest.raises(BundleError, match=r"none newer than 2\.28, which is promised"):
        build_wheels(bundle, tmp_path)


# -- targets ------------------------------------------------------------------------------------------------


def test_a_wheel_for_each_target(tmp_path: Path) -> None:
    bundle = write(tmp_path)
    wheels = build_wheels(bundle, tmp_path / "wheels", split=True)
    labels = ["sm100a", "sm103a", "sm90a"]
    assert names(wheels) == [f"small_{label}-0.1.0-{PLATFORM}" for label in labels]
    groups = []
    for wheel, label, target in zip(wheels, labels, TARGETS, strict=True):
        assert verify_wheel(wheel) == []
        inside = unpacked(wheel, tmp_path)
        assert verify_path(inside) == []
        catalog = read_catalog(inside)
        assert (catalog.name, catalog.version, catalog.variant) == ("small", "0.1.0", label)
        assert catalog.targets == (target,)
        assert headers(wheel)["Name"] == f"cutlass-aot-bundle-small-{label}"
        groups += cutlass_aot.open(inside, check=False).groups
    whole_bundle = cutlass_aot.open(bundle, check=False)
    assert sorted(item.name for item in groups) == [item.name for item in whole_bundle.groups]


def test_a_bundle_of_one_target_is_not_split(tmp_path: Path) -> None:
    bundle = write(tmp_path, targets=("sm_90a",))
    (wheel,) = build_wheels(bundle, tmp_path / "wheels", split=True)
    (plain,) = build_wheels(bundle, tmp_path / "plain")
    assert wheel.read_bytes() == plain.read_bytes()


def test_a_split_bundle_chooses_as_the_whole(tmp_path: Path) -> None:
    """By the same rankings, for every target."""
    made = whole(tmp_path)
    write_bundle(made, tmp_path / "bundle")
    one = cutlass_aot.open(tmp_path / "bundle", check=False)
    operands = [
        cutlass_aot.describe((512, 512), "f16"),
        cutlass_aot.describe((512, 512), "f16", strides=(1, 512)),
        cutlass_aot.describe((512, 512), "f16"),
    ]
    for variant in by_target(require_sound(tmp_path / "bundle").plan()):
        write_bundle(variant, tmp_path / variant.variant)
        smaller = cutlass_aot.open(tmp_path / variant.variant, check=False)
        (target,) = smaller.targets
        choice, expected = (
            bundle.choose(*operands, target=target, gpu="NVIDIA H200") for bundle in (smaller, one)
        )
        assert (choice.kernel.name, choice.tier, choice.reason) == (
            expected.kernel.name, expected.tier, expected.reason,
        )  # fmt: skip


def test_a_bundle_is_split_for_each_host_alike(tmp_path: Path) -> None:
    bundle = write(tmp_path, hosts=("x86_64", "aarch64"), targets=("sm_90a", "sm_100a"))
    wheels = build_wheels(bundle, tmp_path / "wheels", split=True)
    assert len(wheels) == 4
    assert all(verify_wheel(wheel) == [] for wheel in wheels)


def test_a_variant_that_cannot_name_a_wheel_is_refused(tmp_path: Path) -> None:
    made = whole(tmp_path)
    for variant in ("A", "a/b", "a-b", "../x"):
        with pytest.raises(BundleError, match="cannot have a variant"):
            write_bundle(replace(made, variant=variant), tmp_path / "out")


def test_equal_bundles_give_equal_wheels(tmp_path: Path) -> None:
    bundle = write(tmp_path, hosts=("x86_64", "aarch64"))
    first, second = (build_wheels(bundle, tmp_path / name, split=True) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == names_of(first)


def names_of(wheels: list[Path]) -> list[str]:
    return sorted(wheel.name for wheel in wheels)


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("variants")
    return build_wheels(write(folder, targets=("sm_90a", "sm_100a")), folder / "wheels", split=True)


# -- installed ----------------------------------------------------------------------------------------------


def test_of_installed_variants_one_is_opened(variants: list[Path], tmp_path: Path) -> None:
    """In an empty environment, by pip, without an index."""
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = str(environment / "bin" / "python")
    subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", python, "install",
         "--no-index", "--no-deps", "--no-compile", *map(str, variants)],
        check=True,
    )  # fmt: skip
    code = (
        "import cutlass_aot, json\n"
        "bundle = cutlass_aot.open_installed('small', check=False)\n"
        "found = cutlass_aot.installed_bundles()\n"
        "print(json.dumps([bundle.name, bundle.targets, len(bundle.groups), len(found)]))\n"
    )
    packages = [path for path in sys.path if path.endswith("-packages")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *packages])}
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert json.loads(done.stdout) == ["small", ["sm_100a"], 2, 2]


# -- what other tools say of wheels -------------------------------------------------------------------------


def test_twine_takes_every_wheel(variants: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("twine")
    plain = build_wheels(write(tmp_path), tmp_path / "wheels")
    wheels = [str(wheel) for wheel in (*variants, *plain)]
    done = subprocess.run(
        [sys.executable, "-m", "twine", "--no-color", "check", "--strict", *wheels],
        capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "1000"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == len(wheels)


def test_check_wheel_contents_finds_nothing(variants: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("check_wheel_contents")
    plain = build_wheels(write(tmp_path), tmp_path / "wheels")
    for wheel in (*variants, *plain):
        done = subprocess.run(
            [sys.executable, "-m", "check_wheel_contents", "--no-config", str(wheel)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_zip_file_is_sound(variants: list[Path]) -> None:
    for wheel in variants:
        done = subprocess.run(
            [sys.executable, "-m", "zipfile", "-t", str(wheel)], capture_output=True, text=True, check=True
        )
        assert "Done testing" in done.stdout


# -- the command --------------------------------------------------------------------------------------------


def status(*arguments: str) -> Any:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


def test_the_command_splits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = write(tmp_path)
    out = str(tmp_path / "wheels")
    assert status("wheel", str(bundle), "-o", out, "--split", "targets") == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_packed_file_is_named(tmp_path: Path) -> None:
    """What a variant takes from its bundle are the very files of it."""
    made = require_sound(write(tmp_path)).plan()
    kept = {file.sha256 for variant in by_target(made) for file in files_of(variant)}
    assert kept == {file.sha256 for file in files_of(made)}


def files_of(made: BundlePlan) -> list[PackedFile]:
    return [item.code for item in made.groups] + [
        library for item in made.groups for own in item.libraries.values() for library in own
    ]


# -- signatures ---------------------------------------------------------------------------------------------


def test_wheels_of_a_target_or_a_host_are_signed_as_they_are_packed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, other = make_key(tmp_path / "keys", 1), make_key(tmp_path / "keys", 2)
    bundle = write(tmp_path, targets=("sm_90a", "sm_100a"))
    other.sign(bundle)
    out = str(tmp_path / "wheels")
    assert status("wheel", str(bundle), "-o", out, "--split", "targets") == 0
    assert "is signed, and these wheels are not: sign them with --key" in capsys.readouterr().err
    arguments = ["wheel", str(bundle), "-o", out, "--split", "targets", "--key", str(key.path)]
    assert status(*arguments) == 0
    assert not capsys.readouterr().err
    trusted = [read_public_key(key.public)]
    for wheel in (tmp_path / "wheels").iterdir():
        findings = look_at(wheel, trusted)
        assert (findings.problems, findings.signers) == ([], [key.id])
    (wheel,) = build_wheels(bundle, tmp_path / "whole", signer=KeyFile(key.path, str))
    # Nobody's signature of the whole is lost by another, as `sign` loses none; the bundle stays as it was.
    for keys in (trusted, [read_public_key(other.public)]):
        findings = look_at(wheel, keys)
        assert (findings.problems, sorted(findings.signers)) == ([], sorted([key.id, other.id]))
    assert look_at(bundle).signers == [other.id]
    (again,) = build_wheels(bundle, tmp_path / "again", signer=KeyFile(key.path, str))
    assert again.read_bytes() == wheel.read_bytes()


def test_a_signature_that_is_wrong_is_not_packed(tmp_path: Path) -> None:
    key, other = make_key(tmp_path / "keys", 1), make_key(tmp_path / "keys", 2)
    bundle = write(tmp_path)
    path = other.sign(bundle)
    path.write_bytes(flipped(path.read_bytes(), 40))
    with pytest.raises(BundleError, match=r"signatures/.*json"):
        build_wheels(bundle, tmp_path / "wheels", signer=KeyFile(key.path, str))
    assert not (tmp_path / "wheels").exists()
