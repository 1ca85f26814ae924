"""Bundles whose kernels answer requests: written, verified, packed, split, unpacked, listed, shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import cutlass_aot
from cutlass_aot.bundle.files import manifest_to_bytes
from cutlass_aot.bundle.plan import BundlePlan, GroupPlan
from cutlass_aot.bundle.prefill import prefill
from cutlass_aot.bundle.sbom import Code, bill_of_materials, code_of_requests, read_bill
from cutlass_aot.bundle.unpack import unpack_bundle
from cutlass_aot.bundle.verify.directory import require_sound, verify_bundle
from cutlass_aot.bundle.wheel.split import by_target
from cutlass_aot.bundle.wheel.write import build_wheels
from cutlass_aot.bundle.write import bundle_is, write_bundle
from cutlass_aot.cli import main
from cutlass_aot.cli.output.request_lines import set_apart
from cutlass_aot.errors import BundleError, CorruptFile
from cutlass_aot.runtime.files.verified_read import read_catalog, read_manifest
from cutlass_aot.schema.bundles.catalog import CATALOG_NAME, FileReference, GroupEntry, Groups
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.requests.request import CallByName, CompiledRequest
from cutlass_aot.schema.requests.request_index import requests_to_bytes
from tests.support.replace import replace
from tests.support.requests import compiled, request
from tests.support.synthetic import REQUESTS, group, kernels, plan, request_group
from tests.support.verifying import verify_path

SM100 = tuple(compiled(call, target="sm_100a", callable="ops.soft max:f") for call in (None,))


@pytest.fixture
def mixed(tmp_path: Path) -> BundlePlan:
    """A plan with GEMMs, and with requests of two callables for two targets."""
    folder = tmp_path / "linked"
    made = plan(folder, targets=("sm_90a", "sm_100a"))
    own = (request_group(folder), request_group(folder, SM100))
    return replace(made, groups=(*made.groups, *own))


@pytest.fixture
def bundle(mixed: BundlePlan, tmp_path: Path) -> Path:
    write_bundle(mixed, tmp_path / "bundle")
    return tmp_path / "bundle"


def test_a_bundle_with_requests_is_sound_and_the_same_again(mixed: BundlePlan, bundle: Path) -> None:
    assert verify_bundle(bundle) == []
    backwards = replace(
        mixed,
        groups=[
            replace(group, entries=group.entries[::-1], requests=group.requests[::-1])
            for group in mixed.groups[::-1]
        ],
    )
    again = write_bundle(backwards, bundle)
    assert not again.written
    assert bundle_is(bundle, again.catalog_sha256)
    # What is read from it gives it again, too.
    assert not write_bundle(require_sound(bundle).plan(), bundle).written
    assert {path.name for path in (bundle / "requests").iterdir()} == {
        "cute.compile-sm_100a-ops.soft_max.f.msgpack", "cute.compile-sm_90a-ops.norm.Norm.__call__.msgpack",
    }  # fmt: skip


def test_groups_of_requests_have_their_signature_and_no_alignment(bundle: Path) -> None:
    catalog = read_catalog(bundle)
    assert catalog.alignment == 16
    (entry,) = catalog.groups.with_signature("cute.compile   sm_90a")
    assert catalog.groups.of_operation("cute.compile", "sm_90a") == (entry,)
    assert (entry.operands, entry.layouts, entry.kernel_count) == ((), "", 2)
    assert dict(entry.parameters) == {"callable": "ops.norm.Norm.__call__"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda group: replace(group, requests=()), "has no requests: expected one for each of its kernels"),
        (lambda group: replace(group, requests=group.requests[:1]), "has 1 requests for 2 kernels"),
        (lambda group: replace(group, requests=group.requests[:1] * 2), "the request of each kernel, once"),
        (
            lambda group: replace(group, requests=(group.requests[0], SM100[0])),
            "the request of each kernel, once",
        ),
    ],
)
def test_a_plan_has_a_request_for_each_kernel(
    tmp_path: Path, change: Callable[[GroupPlan], GroupPlan], message: str
) -> None:
    made = plan(tmp_path)
    with pytest.raises(BundleError, match=message):
        write_bundle(replace(made, groups=[change(request_group(tmp_path))]), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_requests_of_kernels_that_operands_find_are_refused(tmp_path: Path) -> None:
    made = replace(group(tmp_path, kernels()), requests=REQUESTS)
    with pytest.raises(BundleError, match="of operation gemm has requests: expected none"):
        write_bundle(plan(tmp_path, groups=[made]), tmp_path / "bundle")


def put(bundle: Path, path: str, data: bytes) -> FileReference:
    (bundle / path).write_bytes(data)
    return FileReference(path, len(data), digest(data))


def rewritten(bundle: Path, change: Callable[[Path, GroupEntry], GroupEntry]) -> Path:
    """The bundle with the entry of its first group of requests changed, all digests made right again."""
    catalog, references = read_catalog(bundle), read_manifest(bundle)
    groups = []
    for entry in catalog.groups:
        if entry.operation == "cute.compile" and entry.target == "sm_90a":
            changed = change(bundle, entry)
            references |= {reference.path: reference for reference in changed.files}
            for reference in entry.files:
                if reference not in changed.files and not (bundle / reference.path).exists():
                    del references[reference.path]
            entry = changed
        groups.append(entry)
    references[CATALOG_NAME] = put(
        bundle, CATALOG_NAME, replace(catalog, groups=Groups.of(groups)).to_bytes()
    )
    (bundle / "MANIFEST.json").write_bytes(manifest_to_bytes(references))
    return bundle


def with_requests(requests: Sequence[CompiledRequest]) -> Callable[[Path, GroupEntry], GroupEntry]:
    def change(bundle: Path, entry: GroupEntry) -> GroupEntry:
        assert entry.requests is not None
        return replace(entry, requests=put(bundle, entry.requests.path, requests_to_bytes(requests)))

    return change


def without_requests(bundle: Path, entry: GroupEntry) -> GroupEntry:
    assert entry.requests is not None
    (bundle / entry.requests.path).unlink()
    return replace(entry, requests=None)


def of_gemm(bundle: Path, entry: GroupEntry) -> GroupEntry:
    return replace(entry, operation="gemm")


OTHER = compiled(options={"other": True})


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (with_requests(REQUESTS[:1]), "has 1 requests, the group 2 kernels"),
        (with_requests((REQUESTS[0], OTHER)), f"the request of kernel {OTHER.request.kernel.digest}"),
        (with_requests((OTHER, OTHER)), "has a request twice"),
        (without_requests, "a group that neither operands nor requests find"),
        (of_gemm, "the requests of kernels of operation gemm"),
    ],
)
def test_verify_holds_requests_against_kernels(
    bundle: Path, change: Callable[[Path, GroupEntry], GroupEntry], found: str
) -> None:
    problems = verify_bundle(rewritten(bundle, change))
    assert any(found in problem.found for problem in problems), problems


def test_requests_in_another_order_than_the_kernels_are_found(bundle: Path) -> None:
    (entry,) = read_catalog(bundle).groups.with_signature("cute.compile   sm_90a")
    right = sorted(REQUESTS, key=lambda item: item.request.kernel.name)
    assert verify_bundle(rewritten(bundle, with_requests(right))) == []
    problems = verify_bundle(rewritten(bundle, with_requests(right[::-1])))
    assert entry.requests is not None
    assert [problem.path.partition(":")[0] for problem in problems] == [entry.requests.path] * 2
    with pytest.raises(BundleError, match="is damaged"):
        require_sound(bundle).plan()


def test_the_bill_lists_the_code_of_requests(bundle: Path) -> None:
    catalog = read_catalog(bundle)
    data = (bundle / "sbom" / "bundle.cdx.json").read_bytes()
    expected = {
        Code("ops", "1.2.0", "ab" * 32), Code("model", "", "cd" * 32),
        Code("nvidia-cutlass-dsl", "4.8.1", "ef" * 32),
    }  # fmt: skip
    assert read_bill(data, "it").code == expected == code_of_requests([request()])
    components = {item["bom-ref"]: item for item in json.loads(data)["components"]}
    assert components["code ops 1.2.0 " + "ab" * 32]["purl"] == "pkg:pypi/ops@1.2.0"
    assert "version" not in components["code model  " + "cd" * 32]
    validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema")
    assert validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(data.decode()) is None
    entries = [handle.entry for handle in cutlass_aot.open(bundle, check=False).kernels()]
    references = read_manifest(bundle)
    path = "sbom/bundle.cdx.json"
    other = request(code={"ops": "1.3 " + "ab" * 32})
    references[path] = put(bundle, path, bill_of_materials(catalog, entries, [other]))
    (bundle / "MANIFEST.json").write_bytes(manifest_to_bytes(references))
    (problem,) = verify_bundle(bundle)
    assert problem.path == path
    assert problem.found == "other code than in the requests: model, nvidia-cutlass-dsl, ops"
    with pytest.raises(CorruptFile):
        read_bill(b"[]", "it")


def test_wheels_have_the_requests(bundle: Path, tmp_path: Path) -> None:
    (wheel,) = build_wheels(bundle, tmp_path / "whole")
    assert verify_path(wheel) == []
    wheels = build_wheels(bundle, tmp_path / "wheels", split=True)
    assert [verify_path(wheel) for wheel in wheels] == [[], []]


def test_each_target_of_a_split_bundle_answers_its_own_requests(mixed: BundlePlan, tmp_path: Path) -> None:
    digests: list[str] = []
    for variant in by_target(mixed):
        folder = tmp_path / variant.variant
        write_bundle(variant, folder)
        assert verify_bundle(folder) == []
        digests += cutlass_aot.open(folder, check=False).requests.digests()
    assert sorted(digests) == sorted(item.request.digest for item in (*REQUESTS, *SM100))


def test_unpacking_and_prefilling(bundle: Path, tmp_path: Path) -> None:
    index = unpack_bundle(bundle, tmp_path / "unpacked")
    symbols = {item.request.kernel.symbol for item in (*REQUESTS, *SM100)}
    assert symbols < {item["symbol"] for item in index}
    assert prefill(bundle, tmp_path / "cache").files == 4


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def call(*arguments: object) -> str:
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        assert not caught.value.code
        return capsys.readouterr().out

    return call


def test_ls_says_what_sets_requests_of_a_callable_apart(bundle: Path, run: Callable[..., str]) -> None:
    lines = run("ls", bundle).splitlines()
    assert lines[0].split()[-1] == "request"
    last = [line.split("  ")[-1].strip() for line in lines]
    # By size, not by digest.
    assert [cell for cell in last if cell.startswith("N ")] == ["N 64", "N 128"]
    assert lines[-1] == "9 kernels of small 0.1.0, for sm_90a, sm_100a; tuned for NVIDIA H200"
    listed = json.loads(
        run("ls", bundle, "--operation", "cute.compile", "--where", "callable=ops.norm*", "--json")
    )
    assert {item["design"]["request"] for item in listed} == {item.request.digest for item in REQUESTS}
    assert "request" not in run("ls", bundle, "--operation", "gemm").splitlines()[0]


def test_show_prints_a_request_for_a_reader_and_for_a_program(
    bundle: Path, tmp_path: Path, run: Callable[..., str]
) -> None:
    recorded = compiled(
        CallByName(("x", "eps"), (1e-6,), ("stream", "flag"), {"stream": None}, ("x",)),
        options={"raw": b"\x01\xff"},
        callable="ops.norm:run",
    )
    write_bundle(
        plan(tmp_path / "other", groups=[request_group(tmp_path, [recorded])], rankings=()),
        tmp_path / "shown",
    )
    shown = run("show", tmp_path / "shown", recorded.request.digest[:10])
    for line in (
        f"request           {recorded.request.digest}",
        "callable          ops.norm:run",
        "configuration     ops.norm:Norm",
        "                  N = 4096",
        "arguments         mX      BFloat16, shape (?0, 4096), strides (4096, 1), alignment 16, space gmem",
        "                  weight  None",
        "                  eps     float, passed at each call",
        "extents           ?0  divisibility 8, width 32",
        r"options           raw = b'\x01\xff'",
        "device            sm_count = 132",
        "code              model               -",
        "                    " + "cd" * 32,
        "                  ops.norm:UNROLL = 4",
        "called with       (x, eps=1e-06, *, stream=None, flag); fields of x one after the other",
    ):
        assert line in shown.splitlines(), line
    record = json.loads(run("show", tmp_path / "shown", recorded.request.kernel.name, "--json"))
    assert record["request"]["digest"] == recorded.request.digest
    assert record["request"]["options"] == {"raw": {"bytes": "01ff"}}
    assert record["call"]["keyword_names"] == ["stream", "flag"]
    assert json.loads(run("show", bundle, gemm_name(bundle), "--json")).get("request") is None


def gemm_name(bundle: Path) -> str:
    return cutlass_aot.open(bundle, check=False).kernels(operation="gemm")[0].name


def test_a_large_configuration_is_shown_field_by_field(tmp_path: Path, run: Callable[..., str]) -> None:
    inner = {"object": "ops:Tile", "fields": {f"field_{n}": n for n in range(12)}}
    recorded = compiled(
        configuration={"object": "ops.norm:Norm", "fields": {"tiles": {"tuple": [inner, 7]}, "e": []}}
    )
    write_bundle(
        plan(tmp_path / "other", groups=[request_group(tmp_path, [recorded])], rankings=()), tmp_path / "b"
    )
    lines = [line.strip() for line in run("show", tmp_path / "b", recorded.request.digest).splitlines()]
    at = lines.index("configuration     e = []")
    assert lines[at + 1 : at + 4] == ["tiles:", "[0]:", "field_0 = 0"]
    assert "[1] = 7" in lines


def test_as_few_values_as_do_set_requests_apart() -> None:
    def variant(n: int, dtype: str, **changes: Any) -> Any:
        fields = {"N": n, "twice": 2 * n, "dtype": {"type": f"cutlass:{dtype}"}}
        return request(configuration={"object": "o", "fields": fields}, **changes)

    assert set_apart([]) == []
    assert set_apart([variant(1, "F16")]) == [""]
    assert set_apart([variant(1, "F16"), variant(2, "F16")]) == ["N 1", "N 2"]
    assert set_apart([variant(1, "F16"), variant(1, "BF16"), variant(2, "F16")]) == [
        "N 1, dtype F16", "N 1, dtype BF16", "N 2, dtype F16",
    ]  # fmt: skip
    # Where one has what the other has not.
    assert set_apart([variant(1, "F16"), variant(1, "F16", options={})]) == ["options.opt-level 3", ""]
