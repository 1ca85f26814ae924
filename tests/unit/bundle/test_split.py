"""Bundles in several wheels: for each host, by target or family, under a size; and together one again."""

from __future__ import annotations

import email
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cutlass_aot
from cutlass_aot.bundle.apply import plan_of
from cutlass_aot.bundle.sign import KeyFile
from cutlass_aot.bundle.verify import look_at
from cutlass_aot.bundle.wheel.split import SPLITS, for_host, split
from cutlass_aot.bundle.wheel.write import build_wheels, record_digest, record_to_text
from cutlass_aot.bundle.write import BundlePlan, GroupPlan, PackedFile, write_bundle
from cutlass_aot.cli import main
from cutlass_aot.errors import BundleError
from cutlass_aot.runtime.bundle import Bundle
from cutlass_aot.runtime.files.signatures import read_public_key
from cutlass_aot.runtime.files.verified_read import read_catalog
from cutlass_aot.runtime.opened.bundle_directory import Part
from cutlass_aot.schema.kernels.kernel import Kernel
from tests.support.flips import flipped
from tests.support.signing import make_key
from tests.support.synthetic import exports, group, kernels, launcher, packed, plan, ranking, shared_object
from tests.support.verifying import verify_path, verify_wheel

TARGETS = ("sm_100a", "sm_103a", "sm_90a")
MACHINES = {"aarch64": 183, "x86_64": 62}
PLATFORM = "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
"""Of a part: nothing in the tests' libraries asks for more, whatever the bundle promises."""
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
    assert made.needs.glibc == "2.17"
    assert for_host(made, "x86_64") is made


@pytest.mark.parametrize("hosts", [("x86_64",), ("x86_64", "aarch64")])
def test_a_part_promises_what_its_own_libraries_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: tuple[str, ...]
) -> None:
    """However many hosts the bundle has: what another part's libraries need is not asked for."""
    bundle = write(tmp_path, hosts=hosts, targets=("sm_90a", "sm_100a"))

    def needed(library: object, what: str) -> tuple[int, int]:
        return (2, 28) if "sm_100a" in what else (2, 5)

    for module in ("verify_directory", "glibc"):
        monkeypatch.setattr(f"cutlass_aot.bundle.{module}.needed_glibc", needed)
    wheels = build_wheels(bundle, tmp_path / "wheels", by="targets")
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
    monkeypatch.setattr("cutlass_aot.bundle.verify_directory.needed_glibc", lambda library, what: (2, 30))
    problems = verify_path(bundle)
    assert {problem.found for problem in problems} == {"symbols of glibc 2.30"}
    with pytest.raises(BundleError, match=r"none newer than 2\.28, which is promised"):
        build_wheels(bundle, tmp_path)


# -- parts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "parts"),
    [("targets", ["sm100a", "sm103a", "sm90a"]), ("families", ["sm10x", "sm9x"])],
)
def test_a_wheel_for_each_target_or_family(tmp_path: Path, by: str, parts: list[str]) -> None:
    bundle = write(tmp_path)
    wheels = build_wheels(bundle, tmp_path / "wheels", by=by)
    assert sorted(names(wheels)) == sorted(
        ["small-0.1.0-py3-none-any.whl", *(f"small_{part}-0.1.0-{PLATFORM}" for part in parts)]
    )
    opened = []
    for wheel in wheels:
        assert verify_wheel(wheel) == []
        if wheel.name.endswith("any.whl"):
            assert headers(wheel).get_all("Requires-Dist") == [
                f"cutlass-aot-bundle-small-{part}==0.1.0" for part in parts
            ]
            continue
        inside = unpacked(wheel, tmp_path)
        assert verify_path(inside) == []
        catalog = read_catalog(inside)
        assert (catalog.name, catalog.version, catalog.parts) == ("small", "0.1.0", tuple(sorted(parts)))
        assert headers(wheel)["Name"] == f"cutlass-aot-bundle-small-{catalog.part}"
        opened.append(inside)
    total = Bundle([Part(path, read_catalog(path)) for path in opened])
    assert [item.name for item in total.groups] == [
        item.name for item in cutlass_aot.open(bundle, check=False).groups
    ]


def test_a_bundle_in_parts_is_split_for_each_host_alike(tmp_path: Path) -> None:
    bundle = write(tmp_path, hosts=("x86_64", "aarch64"), targets=("sm_90a", "sm_100a"))
    wheels = build_wheels(bundle, tmp_path / "wheels", by="targets")
    assert len(wheels) == 5
    assert all(verify_wheel(wheel) == [] for wheel in wheels)


def test_wheels_stay_under_a_limit(tmp_path: Path) -> None:
    bundle = write(tmp_path, pad=PAD)
    limit = 400_000
    wheels = build_wheels(bundle, tmp_path / "wheels", limit=limit)
    assert sorted(names(wheels))[-2:] == [f"small_part{number}-0.1.0-{PLATFORM}" for number in (2, 3)]
    assert max(wheel.stat().st_size for wheel in wheels) <= limit
    assert all(verify_wheel(wheel) == [] for wheel in wheels)
    both = build_wheels(bundle, tmp_path / "both", by="targets", limit=240_000)
    assert f"small_sm100a_part2-0.1.0-{PLATFORM}" in names(both)
    assert all(verify_wheel(wheel) == [] for wheel in both)


def test_what_is_below_the_limit_stays_whole(tmp_path: Path) -> None:
    bundle = write(tmp_path)
    (wheel,) = build_wheels(bundle, tmp_path / "wheels", limit=10_000_000)
    (plain,) = build_wheels(bundle, tmp_path / "plain")
    assert wheel.read_bytes() == plain.read_bytes()


def test_what_fits_by_its_real_size_is_neither_split_nor_refused(tmp_path: Path) -> None:
    bundle = write(tmp_path)
    (plain,) = build_wheels(bundle, tmp_path / "plain")
    real = plain.stat().st_size
    (wheel,) = build_wheels(bundle, tmp_path / "wheels", limit=real)
    assert wheel.read_bytes() == plain.read_bytes()
    parts = build_wheels(bundle, tmp_path / "parts", limit=real - 1)
    assert len(parts) > 2
    assert max(wheel.stat().st_size for wheel in parts) < real
    targets = build_wheels(bundle, tmp_path / "targets", by="targets")
    same = build_wheels(bundle, tmp_path / "same", by="targets", limit=real)
    assert [wheel.read_bytes() for wheel in same] == [wheel.read_bytes() for wheel in targets]
    with pytest.raises(BundleError, match=r"would come to [0-9.]+ KB in a wheel; the limit is 4\.0 KB"):
        build_wheels(bundle, tmp_path / "refused", limit=4_000)
    assert list((tmp_path / "refused").iterdir()) == []


def test_what_cannot_be_parted_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    bundle = write(tmp_path, pad=PAD)
    with pytest.raises(
        BundleError, match=r"about 1\d\d\.\d KB in a wheel; the limit is 100\.0 KB: allow more"
    ):
        build_wheels(bundle, tmp_path / "wheels", limit=100_000)
    assert not (tmp_path / "wheels").exists()


def sharing(folder: Path, made: BundlePlan, count: int) -> BundlePlan:
    """The same bundle, whose first groups share their code and library."""
    first = list(made.groups[:count])
    shown = [entry.kernel for item in first for entry in item.entries]
    library = replace(packed(folder, "shared", "so.zst", shared_object(exports(shown))), name="shared")
    codes = [
        (item, f"GPU code of {entry.kernel.digest}".encode(), entry)
        for item in first
        for entry in item.entries
    ]
    code = replace(packed(folder, "shared", "zst", b"".join(code for _, code, _ in codes)), name="shared")
    places = {entry.kernel.digest: number * len(text) for number, (_, text, entry) in enumerate(codes)}
    groups = [
        replace(
            item,
            code=code,
            libraries={"x86_64": (library,)},
            entries=tuple(
                entry._replace(code=entry.code._replace(offset=places[entry.kernel.digest]))
                for entry in item.entries
            ),
        )
        for item in first
    ]
    return replace(made, groups=(*groups, *made.groups[count:]))


def test_groups_that_share_a_library_stay_together(tmp_path: Path) -> None:
    made = sharing(tmp_path, whole(tmp_path, targets=("sm_90a",)), 2)
    write_bundle(made, tmp_path / "bundle")
    assert split(plan_of(tmp_path / "bundle"), limit=70_000 + 66_000)[0].part == ""
    across = sharing(tmp_path, whole(tmp_path / "across", targets=("sm_100a", "sm_90a")), 4)
    with pytest.raises(BundleError, match="share a file and belong to the parts sm100a, sm90a"):
        split(across, label=SPLITS["targets"])


def test_parts_of_parts_and_names_that_cannot_be_are_refused(tmp_path: Path) -> None:
    made = whole(tmp_path)
    for part, parts in (("a", ("b",)), ("", ("a",)), ("A", ("A",)), ("a/b", ("a/b",)), ("a", ())):
        with pytest.raises(BundleError, match="cannot have a part"):
            write_bundle(replace(made, part=part, parts=parts), tmp_path / "out")


def test_equal_bundles_give_equal_parts(tmp_path: Path) -> None:
    bundle = write(tmp_path, hosts=("x86_64", "aarch64"))
    first, second = (build_wheels(bundle, tmp_path / name, by="targets") for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == names_of(first)


def names_of(wheels: list[Path]) -> list[str]:
    return sorted(wheel.name for wheel in wheels)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BundlePlan]:
    folder = tmp_path_factory.mktemp("large")
    made = whole(folder)
    groups = [padded(folder / "linked", item, 1000 * number) for number, item in enumerate(made.groups, 1)]
    write_bundle(replace(made, groups=tuple(groups)), folder / "bundle")
    return folder, plan_of(folder / "bundle")


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(by=st.sampled_from([None, "targets", "families"]), limit=st.integers(85_000, 140_000))
def test_parts_are_the_bundle_again(
    large: tuple[Path, BundlePlan], tmp_path_factory: pytest.TempPathFactory, by: str | None, limit: int
) -> None:
    """However a bundle is split, its parts have every group and ranking once, and answer as it does."""
    folder, made = large
    parts = split(made, label=SPLITS[by] if by else None, limit=limit)
    found = sorted(item.name for part in parts for item in part.groups)
    assert found == sorted(item.name for item in made.groups)
    assert sum(len(part.rankings) for part in parts) == len(made.rankings)
    written = tmp_path_factory.mktemp("parts")
    opened = []
    for part in parts:
        path = written / (part.part or "whole")
        write_bundle(part, path)
        assert verify_path(path) == []
        opened.append(Part(path, read_catalog(path)))
    merged, one = Bundle(opened), cutlass_aot.open(folder / "bundle", check=False)
    assert [kernel.name for kernel in merged.kernels()] == [kernel.name for kernel in one.kernels()]
    operands = [
        cutlass_aot.describe((512, 512), "f16"),
        cutlass_aot.describe((512, 512), "f16", strides=(1, 512)),
        cutlass_aot.describe((512, 512), "f16"),
    ]
    for target in TARGETS:
        choice, expected = (
            bundle.choose(*operands, target=target, gpu="NVIDIA H200") for bundle in (merged, one)
        )
        assert (choice.kernel.name, choice.tier, choice.reason) == (
            expected.kernel.name, expected.tier, expected.reason,
        )  # fmt: skip


# -- the wheel that needs all parts -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("parts")
    return build_wheels(write(folder, targets=("sm_90a", "sm_100a")), folder / "wheels", by="targets")


def all_of(wheels: list[Path]) -> Path:
    (wheel,) = [wheel for wheel in wheels if wheel.name.endswith("any.whl")]
    return wheel


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("METADATA", b"small-sm90a==0.1.0", b"small-sm90a==0.1.1"),
        ("METADATA", b"small-sm90a==0.1.0", b"small-../x==0.1.0"),
        ("METADATA", b"Requires-Dist: cutlass-aot-bundle-small-sm90a==0.1.0", b"Requires-Dist: evil"),
        ("METADATA", b"Name: cutlass", b"Name: other"),
        ("METADATA", b"Version: 0", b"Version: 1"),
        ("METADATA", b"Requires-Python", b"Requires-Dist: evil\nRequires-Python"),
        ("METADATA", b"Requires-Python", b"Provides-Extra: x\nRequires-Python"),
        ("METADATA", b"data alone.", b"data alone, and more."),
        ("WHEEL", b"Root-Is", b"Build: 1\nRoot-Is"),
        ("WHEEL", b"Generator: cutlass-aot", b"Generator: other"),
        ("WHEEL", b"py3-none-any", b"cp311-none-any"),
        ("__init__.py", b'small; see', b'other; see'),
        ("__init__.py", b'"""\n', b'"""\nimport os\n'),
        ("RECORD", b"sha256=", b"sha256=A"),
        ("RECORD", b"__init__.py,", b"__init__.pyc,"),
    ],
)  # fmt: skip
def test_an_altered_wheel_of_all_parts_is_found(
    parts: list[Path], tmp_path: Path, name: str, old: bytes, new: bytes
) -> None:
    source = all_of(parts)
    altered = tmp_path / source.name
    with zipfile.ZipFile(source) as archive:
        files = {path: archive.read(path) for path in archive.namelist()}
    (changed,) = (path for path in files if path.endswith(name))
    assert old in files[changed]
    files[changed] = files[changed].replace(old, new)
    if name != "RECORD":
        # Made to fit, so that it is no help.
        (record,) = (path for path in files if path.endswith("/RECORD"))
        rows = [
            (path, record_digest(hashlib.sha256(data).digest()), len(data))
            for path, data in files.items()
            if path != record
        ]
        files[record] = record_to_text([*rows, (record, "", "")]).encode()
    with zipfile.ZipFile(altered, "w") as out:
        for path, data in files.items():
            out.writestr(path, data)
    assert verify_wheel(altered)
    extra = tmp_path / "extra" / source.name
    extra.parent.mkdir()
    extra.write_bytes(source.read_bytes())
    with zipfile.ZipFile(extra, "a") as out:
        out.writestr("evil.pth", "import os")
    assert "evil.pth" in {problem.path for problem in verify_wheel(extra)}


# -- installed ----------------------------------------------------------------------------------------------


def test_installed_parts_are_one_bundle(parts: list[Path], tmp_path: Path) -> None:
    """In an empty environment, by pip, without an index."""
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = str(environment / "bin" / "python")
    subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", python, "install",
         "--no-index", "--no-deps", "--no-compile", *map(str, parts)],
        check=True,
    )  # fmt: skip
    code = (
        "import cutlass_aot, json\n"
        "bundle = cutlass_aot.open_installed('small', check=False)\n"
        "record = bundle.report().to_record()\n"
        "print(json.dumps([bundle.name, bundle.targets, len(bundle.groups), record]))\n"
    )
    packages = [path for path in sys.path if path.endswith("-packages")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *packages])}
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, env=environ)
    name, targets, groups, report = json.loads(done.stdout)
    assert (name, targets, groups) == ("small", ["sm_100a", "sm_90a"], 4)
    assert [item["part"] for item in report["used"]] == ["sm100a", "sm90a"]
    assert not report["missing"]


# -- what other tools say of wheels -------------------------------------------------------------------------


def test_twine_takes_every_wheel(parts: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("twine")
    plain = build_wheels(write(tmp_path), tmp_path / "wheels")
    wheels = [str(wheel) for wheel in (*parts, *plain)]
    done = subprocess.run(
        [sys.executable, "-m", "twine", "--no-color", "check", "--strict", *wheels],
        capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "1000"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == len(wheels)


def test_check_wheel_contents_finds_nothing(parts: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("check_wheel_contents")
    plain = build_wheels(write(tmp_path), tmp_path / "wheels")
    for wheel in (*parts, *plain):
        done = subprocess.run(
            [sys.executable, "-m", "check_wheel_contents", "--no-config", str(wheel)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_zip_file_is_sound(parts: list[Path]) -> None:
    for wheel in parts:
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
    assert status("wheel", str(bundle), "-o", out, "--split", "targets", "--max-size", "1MiB") == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    for text in ("many", "0", "10TB", "-1", "1.5MB", "9" * 5000):
        assert status("wheel", str(bundle), "-o", out, "--max-size", text) == 2
        told = " ".join(capsys.readouterr().err.split())
        assert "expected a size such as 100MB or 60MiB: a whole number above 0" in told


def test_a_packed_file_is_named(tmp_path: Path) -> None:
    """What a part takes from its bundle are the very files of it."""
    made = plan_of(write(tmp_path))
    kept = {file.sha256 for part in split(made, label=SPLITS["targets"]) for file in files_of(part)}
    assert kept == {file.sha256 for file in files_of(made)}


def files_of(made: BundlePlan) -> list[PackedFile]:
    return [item.code for item in made.groups] + [
        library for item in made.groups for own in item.libraries.values() for library in own
    ]


# -- signatures ---------------------------------------------------------------------------------------------


def test_wheels_of_a_part_or_a_host_are_signed_as_they_are_packed(
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
        if wheel.name.endswith("any.whl"):
            assert [problem.found for problem in findings.problems] == ["no bundle, and so no signature"]
        else:
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
