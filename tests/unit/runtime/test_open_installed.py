"""What is at hand, opened as one: parts, several bundles, what shadows what, and what is left out."""

from __future__ import annotations

import importlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cutlass_aot
from cutlass_aot.cli import main
from cutlass_aot.errors import BundleError, CorruptFile, Incompatible, KernelNotFound
from cutlass_aot.runtime.bundle import Bundle
from cutlass_aot.runtime.files.verified_read import read_catalog
from cutlass_aot.runtime.installed import installed_report
from cutlass_aot.runtime.opened.bundle_directory import Part
from cutlass_aot.runtime.opened.precedence import Contender, shadows
from cutlass_aot.schema.bundles.catalog import CATALOG_NAME
from cutlass_aot.schema.kernels.kernel import Kernel
from tests.support.bundles import NEEDS, designs, write_bundle
from tests.support.synthetic import ranking


@pytest.fixture(autouse=True)
def _no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUTLASS_AOT_BUNDLE_PATH", raising=False)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of the search path, before what is installed."""
    folder = tmp_path / "tree"
    folder.mkdir()
    monkeypatch.setenv("CUTLASS_AOT_BUNDLE_PATH", str(folder))
    return folder


def operands(dtype: str = "f16", extent: int = 64) -> tuple[Any, ...]:
    describe = cutlass_aot.describe
    return (
        describe((extent, extent), dtype),
        describe((extent, extent), dtype, strides=(1, extent)),
        describe((extent, extent), dtype),
    )


def of(dtype: str, **changes: Any) -> list[Kernel]:
    return designs(dtypes=(dtype,) * 3, **changes)


# -- parts of one bundle ------------------------------------------------------------------------------------


def test_parts_add_up_to_one_bundle(tree: Path) -> None:
    for part, dtype in (("one", "f16"), ("two", "bf16")):
        write_bundle(tree / part, of(dtype), part=part, parts=("one", "two"))
    bundle = cutlass_aot.open_installed("small")
    assert (bundle.name, bundle.version, len(bundle.groups)) == ("small", "0.1.0", 2)
    assert [part.path.name for part in bundle.parts] == ["one", "two"]
    for dtype in ("f16", "bf16"):
        assert len(bundle.find(*operands(dtype))) == 3
    assert len(bundle.kernels()) == 6
    assert len(bundle.explain(*operands())) == 2
    report = bundle.report()
    assert [item.part for item in report.used] == ["one", "two"]
    assert (report.shadowed, report.unusable, report.missing) == ((), (), ())


def test_a_part_that_is_not_there_is_named(tree: Path) -> None:
    write_bundle(tree / "one", of("f16"), part="one", parts=("one", "three", "two"))
    report = cutlass_aot.open_installed("small").report()
    assert [item.part for item in report.missing] == ["three", "two"]
    assert "missing: small 0.1.0 part three is not installed" in str(report)
    write_bundle(tree / "whole", of("f16"))
    assert not cutlass_aot.open_installed("small").report().missing


def test_a_part_that_is_there_and_unusable_is_not_missing(tree: Path) -> None:
    write_bundle(tree / "one", of("f16"), part="one", parts=("one", "three", "two"))
    write_bundle(tree / "two", of("bf16"), part="two", parts=("one", "three", "two"), hosts=("s390x",))
    report = cutlass_aot.open_installed("small").report()
    assert [(item.part, Path(item.path).name) for item in report.unusable] == [("two", "two")]
    assert f"unusable: small 0.1.0 part two ({tree / 'two'}): " in str(report)
    assert [item.part for item in report.missing] == ["three"]


KERNELS = [
    kernel
    for dtype in ("f16", "bf16")
    for target in ("sm_90a", "sm_100a", "sm_100f")
    for accumulator in (("f32", "f16") if dtype == "f16" else ("f32",))
    for kernel in of(dtype, target=target, accumulator=accumulator)
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return cutlass_aot.open(
        write_bundle(tmp_path_factory.mktemp("whole") / "b", KERNELS, rankings=rankings())
    )


def rankings() -> list[Any]:
    members: dict[str, list[Kernel]] = {}
    for kernel in KERNELS:
        members.setdefault(kernel.group, []).append(kernel)
    return [ranking(group) for group in members.values()]


def answers(bundle: Bundle, *given: Any, **asked: Any) -> Any:
    try:
        choice = bundle.choose(*given, **asked)
        chosen = (choice.kernel.name, choice.tier, choice.reason)
        found = [kernel.name for kernel in bundle.find(*given, **asked)]
    except KernelNotFound as error:
        return str(error)
    asked.pop("gpu", None)
    return chosen, found, [(group.name, verdict.reason) for group, verdict in bundle.explain(*given, **asked)]


QUESTIONS: Sequence[tuple[tuple[Any, ...], dict[str, Any]]] = [
    *((operands(dtype), {}) for dtype in ("f16", "bf16", "f32")),
    (operands("f16", 512), {"target": "sm_90a", "gpu": "NVIDIA H200"}),
    (operands("f16", 512), {"target": "sm_100f"}),
    (operands("f16"), {"accumulator": "f16"}),
    (operands("bf16"), {"accumulator": "f16"}),
    (operands("f16"), {"target": "sm_80"}),
]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_bundle_in_parts_answers_as_the_whole(
    whole: Bundle, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever way groups are spread, and in whatever order the parts are found."""
    groups = sorted({kernel.group for kernel in KERNELS})
    count = data.draw(st.integers(1, 4))
    spread = {group: data.draw(st.integers(0, count - 1)) for group in groups}
    folder = tmp_path_factory.mktemp("split")
    names = tuple(str(number) for number in sorted(set(spread.values())))
    parts = []
    for number in data.draw(st.permutations(names)):
        kernels = [kernel for kernel in KERNELS if spread[kernel.group] == int(number)]
        root = write_bundle(folder / number, kernels, rankings=rankings(), part=number, parts=names)
        parts.append(Part(root, read_catalog(root)))
    merged = Bundle(parts)
    assert merged.targets == whole.targets
    assert [group.name for group in merged.groups] == [group.name for group in whole.groups]
    assert [kernel.name for kernel in merged.kernels()] == [kernel.name for kernel in whole.kernels()]
    for operands_asked, asked in QUESTIONS:
        assert answers(merged, *operands_asked, **asked) == answers(whole, *operands_asked, **asked)


# -- several bundles ----------------------------------------------------------------------------------------


def test_without_a_name_everything_at_hand_is_one_bundle(tree: Path) -> None:
    write_bundle(tree / "a", of("f16"), name="a")
    write_bundle(tree / "b", of("bf16"), name="b", version="2.0")
    bundle = cutlass_aot.open_installed()
    assert (bundle.name, bundle.version) == ("a+b", "0.1.0+2.0")
    assert repr(bundle) == "<Bundle a+b 0.1.0+2.0: 6 kernels, sm_90a>"
    assert bundle.find(*operands("bf16"))
    with pytest.raises(KernelNotFound, match=r"bundle a\+b has no kernel"):
        bundle.find(*operands("f32"))


def shadowing(tree: Path, **second: Any) -> tuple[str, str]:
    """Who is asked of bundles ``b`` and ``c`` with the same group, and why."""
    fields = {"name": "c", **second}
    kernels = fields.pop("kernels", of("f16"))
    write_bundle(tree / "b", of("f16"), name="b")
    write_bundle(tree / "c", kernels, **fields)
    bundle = cutlass_aot.open_installed()
    (handle,) = {kernel._group._root.name for kernel in bundle.find(*operands())}
    (shadowed,) = bundle.report().shadowed
    assert Path(shadowed.path).name != handle
    assert Path(shadowed.by).name == handle
    assert len(shadowed.groups) == 1
    return handle, shadowed.reason


def test_the_newer_version_is_asked(tree: Path) -> None:
    assert shadowing(tree, version="0.10.0") == ("c", "0.10.0 is newer than 0.1.0")


def test_of_one_version_what_was_measured_is_asked(tree: Path) -> None:
    kernels = of("f16")
    assert shadowing(tree, rankings=[ranking(kernels)]) == ("c", "it has measured times")


def test_else_the_name_decides(tree: Path) -> None:
    assert shadowing(tree) == ("b", "its name comes first")


def test_of_two_copies_the_path_decides(tree: Path) -> None:
    assert shadowing(tree, name="b") == ("b", "its path comes first")


def test_without_a_check_what_this_host_can_load_is_asked(tree: Path) -> None:
    """Whatever comes first otherwise: place, version, and name."""
    for earlier in (tree / "a", tree.parent / "first"):
        write_bundle(earlier, of("f16"), name="a", version="9.0", hosts=("s390x",))
        write_bundle(tree / "b", of("f16"), name="b")
        bundle = cutlass_aot.open_installed(check=False, paths=[earlier])
        assert {kernel._group._root.name for kernel in bundle.find(*operands())} == {"b"}
        (shadowed, *_) = bundle.report().shadowed
        assert (shadowed.by, shadowed.reason) == (str(tree / "b"), "it has libraries for this host")
        shutil.rmtree(earlier)


contenders = st.builds(
    Contender,
    loadable=st.booleans(),
    place=st.integers(0, 1),
    version=st.sampled_from(["1.0", "1.0.0", "1.10", "1.9"]),
    measured=st.booleans(),
    name=st.sampled_from("ab"),
    path=st.sampled_from("xyz"),
)


@given(some=st.lists(contenders, min_size=2, max_size=5, unique_by=lambda item: item.path))
def test_of_any_number_one_is_asked(some: list[Contender]) -> None:
    for one in some:
        for other in some:
            if one is not other:
                assert bool(shadows(one, other)) is not bool(shadows(other, one))
    asked = [one for one in some if all(shadows(one, other) for other in some if other is not one)]
    assert len(asked) == 1
    assert asked[0].loadable or not any(one.loadable for one in some)


def test_other_groups_of_a_shadowed_bundle_are_asked(tree: Path) -> None:
    write_bundle(tree / "b", of("f16"), name="b")
    write_bundle(tree / "c", [*of("f16"), *of("bf16")], name="c")
    bundle = cutlass_aot.open_installed()
    assert {kernel._group._root.name for kernel in bundle.find(*operands())} == {"b"}
    assert {kernel._group._root.name for kernel in bundle.find(*operands("bf16"))} == {"c"}


def test_an_exact_target_comes_first_in_whatever_bundle_it_is(tree: Path, gpu: dict[str, Any]) -> None:
    gpu["capability"] = (10, 0)
    for name, target in (("a", "sm_80"), ("b", "sm_100f"), ("c", "sm_100a")):
        write_bundle(tree / name, of("f16", target=target), name=name)
    bundle = cutlass_aot.open_installed()
    on_gpu = tuple(
        cutlass_aot.describe(item.shape, item.dtype, strides=item.strides, device=0) for item in operands()
    )
    assert {kernel.target for kernel in bundle.find(*on_gpu)} == {"sm_100a"}
    gpu["capability"] = (10, 3)
    assert {kernel.target for kernel in cutlass_aot.open_installed().find(*on_gpu)} == {"sm_100f"}


# -- the search path ----------------------------------------------------------------------------------------


def test_directories_earlier_on_the_path_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    write_bundle(first, of("f16"))
    write_bundle(second / "small", of("f16"), version="9.0")
    write_bundle(third / "package" / "bundle", of("f16"), version="10.0")
    monkeypatch.setenv("CUTLASS_AOT_BUNDLE_PATH", os.pathsep.join([str(second), "", str(third)]))
    bundle = cutlass_aot.open_installed("small", paths=[first])
    assert [part.path for part in bundle.parts] == [first]
    assert {item.reason for item in bundle.report().shadowed} == {"it comes earlier on the search path"}
    assert cutlass_aot.open_installed("small").path == second / "small"
    assert cutlass_aot.open_installed("small", "10.0").path == third / "package" / "bundle"
    with pytest.raises(BundleError, match=r"'large' is not installed: installed are small 9\.0, small 10\.0"):
        cutlass_aot.open_installed("large")


def test_a_directory_twice_counts_once(tree: Path, tmp_path: Path) -> None:
    write_bundle(tree / "small", of("f16"))
    (tmp_path / "link").symlink_to(tree)
    assert len(cutlass_aot.installed_bundles([tmp_path / "link", tree / "small"])) == 1


def test_a_read_only_tree_is_enough(tree: Path) -> None:
    write_bundle(tree / "small", of("f16"))
    folders = [tree, tree / "small", *(path for path in tree.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert cutlass_aot.open_installed("small").find(*operands())
    finally:
        for folder in folders:
            folder.chmod(0o755)


# -- what cannot be used ------------------------------------------------------------------------------------


def test_what_cannot_be_used_is_left_out_with_the_reason(tree: Path) -> None:
    write_bundle(tree / "good", of("f16"), name="good")
    write_bundle(tree / "host", of("bf16"), name="host", hosts=("s390x",))
    write_bundle(tree / "old", of("bf16"), name="old", needs=NEEDS._replace(glibc="9.9"))
    (write_bundle(tree / "torn", of("bf16"), name="torn") / CATALOG_NAME).write_bytes(b"torn")
    manifest = write_bundle(tree / "newer", of("bf16"), name="newer") / "MANIFEST.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "schema": 999}))
    bundle = cutlass_aot.open_installed()
    assert bundle.name == "good"
    reasons = {Path(item.path).name: item.reason for item in bundle.report().unusable}
    assert set(reasons) == {"host", "old", "torn", "newer"}
    assert "s390x" in reasons["host"]
    assert "needs 9.9 or newer" in reasons["old"]
    assert "expected" in reasons["torn"]
    assert "999" in reasons["newer"]
    assert installed_report() == bundle.report()
    record = bundle.report().to_record()
    assert json.loads(json.dumps(record)) == record
    assert [item["name"] for item in record["used"]] == ["good"]


def test_without_a_check_other_machines_are_no_reason(tree: Path) -> None:
    write_bundle(tree / "host", of("bf16"), hosts=("s390x",))
    assert cutlass_aot.open_installed("small", check=False).name == "small"


def test_an_older_version_serves_where_the_newest_cannot_be_used(tree: Path) -> None:
    write_bundle(tree / "1", of("f16"), version="1.0")
    write_bundle(tree / "2", of("f16"), version="2.0", needs=NEEDS._replace(glibc="9.9"))
    bundle = cutlass_aot.open_installed("small")
    assert bundle.version == "1.0"
    assert [item.version for item in bundle.report().unusable] == ["2.0"]


def test_one_error_is_raised_as_it_is_and_several_together(tree: Path) -> None:
    root = write_bundle(tree / "a", of("f16"), needs=NEEDS._replace(glibc="9.9"))
    with pytest.raises(Incompatible, match=r"needs 9\.9"):
        cutlass_aot.open_installed("small")
    write_bundle(tree / "b", of("f16"), hosts=("s390x",))
    with pytest.raises(Incompatible, match=r"none of the 2 bundles at hand .*needs 9\.9.*; .*s390x"):
        cutlass_aot.open_installed("small")
    (root / CATALOG_NAME).unlink()
    with pytest.raises(BundleError, match=r"none of the 2 bundles at hand"):
        cutlass_aot.open_installed()
    (tree / "b" / CATALOG_NAME).write_bytes(b"torn")
    (root / CATALOG_NAME).write_bytes(b"torn")
    with pytest.raises(BundleError, match="'small' is not installed: installed are no bundles"):
        cutlass_aot.open_installed("small")
    for path in (tree / "b").iterdir():
        if path.is_file():
            path.unlink()
    with pytest.raises(CorruptFile):
        cutlass_aot.open_installed()


def test_a_directory_that_is_not_there_or_holds_nothing_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bundle(tmp_path / "some" / "small", of("f16"))
    (tmp_path / "empty").mkdir()
    names = [str(tmp_path / name) for name in ("gone", "empty", "some")]
    monkeypatch.setenv("CUTLASS_AOT_BUNDLE_PATH", os.pathsep.join(names))
    reasons = [item.reason for item in cutlass_aot.open_installed("small").report().unusable]
    assert len(reasons) == 2
    assert any("No such file" in reason for reason in reasons)
    assert any("MANIFEST.json" in reason for reason in reasons)


def test_a_report_of_nothing_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutlass_aot.runtime.installed.located", lambda paths: [])
    importlib.invalidate_caches()
    assert installed_report() == ((), (), (), ())
    with pytest.raises(BundleError, match="no bundle is installed"):
        cutlass_aot.open_installed()


# -- the command --------------------------------------------------------------------------------------------


def test_the_command_says_what_is_found_and_what_is_not(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["installed", *arguments])
        assert ended.value.code == 0
        return capsys.readouterr().out

    write_bundle(tree / "good", of("f16"), part="one", parts=("one", "two"))
    write_bundle(tree / "host", of("bf16"), name="host", hosts=("s390x",))
    lines = run().splitlines()
    assert lines[0] == f"small 0.1.0 part one: 3 kernels in 1 groups for sm_90a ({tree / 'good'})"
    assert lines[1].startswith(f"unusable: host 0.1.0 ({tree / 'host'}): ")
    assert lines[2] == "missing: small 0.1.0 part two is not installed"
    assert "host" not in run("small")
    assert run("other", "--path", str(tree)) == "no bundle other is installed\n"
    record = json.loads(run("--json"))
    assert [item["part"] for item in record["used"]] == ["one"]
