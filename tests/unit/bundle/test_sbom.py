"""The bill of materials: every package and kernel, valid, the same for equal bundles, and small."""

from __future__ import annotations

import json
import posixpath
import zipfile
import zlib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from cutlass_aot.bundle import sbom
from cutlass_aot.bundle.files import manifest_to_bytes
from cutlass_aot.bundle.sbom import bill_of_materials, bill_of_wheel, kernels_of_index, read_bill
from cutlass_aot.bundle.wheel.write import build_wheels
from cutlass_aot.bundle.write import write_bundle
from cutlass_aot.errors import CorruptFile
from cutlass_aot.runtime.files.verified_read import parse_manifest, read_catalog
from cutlass_aot.schema.bundles.catalog import MANIFEST_NAME, Catalog
from cutlass_aot.schema.bundles.group_index import CodeSpan, KernelEntry
from cutlass_aot.schema.encoding import digest
from tests.support.kernels import gemm
from tests.support.replace import replace
from tests.support.synthetic import entry, kernels, plan, request_group
from tests.support.verifying import verify_path, verify_wheel

PROVENANCE = {
    "apache-tvm-ffi": "0.1.15.post2",
    "cutlass-aot": "0.1.0",
    "nvidia-cuda-runtime": "13.0.96",
    "nvidia-cutlass-dsl": "4.8.1",
    "nvidia-cutlass-dsl-libs-cu12": "4.8.1",
    "nvidia-cutlass-operators": "0.3.0",
    "of-a-user": "1.0+cu13",
    "toolchain": "ab" * 32,
    "ziglang": "0.17.0",
}


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    write_bundle(plan(tmp_path / "linked", provenance=PROVENANCE), tmp_path / "bundle")
    return read_catalog(tmp_path / "bundle")


def entries(count: int = 3) -> list[KernelEntry]:
    """Kernels of two generators, with digests that do not repeat."""
    made = []
    for number in range(count):
        kernel = gemm(
            generator="cutlass.operators" if number % 3 else "sm90_gemm",
            design={"family": "F", "tile_shape": (128, 8 * (number + 1), 64), "cluster_shape": (1, 1)},
        )
        code, made_object = digest(f"code {number}".encode()), digest(f"object {number}".encode())
        provenance = {
            "generator_version": f"1+{digest(kernel.generator.encode())[:16]}",
            "toolchain": "ab" * 32,
        }
        made.append(
            entry(kernel, CodeSpan(0, 64, code))._replace(object_sha256=made_object, provenance=provenance)
        )
    return made


def components(bill: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def gather(items: list[dict[str, Any]]) -> None:
        for item in items:
            found[item["name"]] = item
            gather(item.get("components", []))

    gather(json.loads(bill)["components"])
    return found


def properties(component: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item["value"] for item in component["properties"]}


def test_every_package_has_its_version_licence_and_role(catalog: Catalog) -> None:
    found = components(bill_of_materials(catalog, entries()))
    packages = {name: item for name, item in found.items() if "purl" in item}
    assert {name: item["version"] for name, item in packages.items()} == {
        name: version for name, version in PROVENANCE.items() if name != "toolchain"
    }
    assert packages["ziglang"]["licenses"] == [{"license": {"id": "MIT"}}]
    assert packages["ziglang"]["scope"] == "excluded"
    assert packages["cutlass-aot"]["scope"] == "required"
    assert properties(packages["nvidia-cutlass-dsl-libs-cu12"]) == {"cutlass-aot:role": "compiles kernels"}
    assert packages["of-a-user"]["purl"] == "pkg:pypi/of-a-user@1.0%2Bcu13"
    assert "licenses" not in packages["of-a-user"]


def test_what_is_compiled_into_kernels_is_in_the_bundle_with_its_licence(tmp_path: Path) -> None:
    licenses = {
        f"{name}.txt": b"Redistributions in binary form" for name in ("nvidia-cutlass-operators", "of-a-user")
    }
    write_bundle(plan(tmp_path / "linked", provenance=PROVENANCE, licenses=licenses), tmp_path / "bundle")
    bundle = tmp_path / "bundle"
    found = components((bundle / "sbom/bundle.cdx.json").read_bytes())
    operators, own = found["nvidia-cutlass-operators"], found["of-a-user"]
    assert (operators["scope"], own["scope"]) == ("required", "required")
    url = "../licenses/nvidia-cutlass-operators.txt"
    assert operators["licenses"] == [{"license": {"id": "BSD-3-Clause", "url": url}}]
    assert own["licenses"][0]["license"]["url"] == "../licenses/of-a-user.txt"
    assert properties(operators) == {"cutlass-aot:role": "sources of kernels, in kernels"}
    assert found["ziglang"]["scope"] == "excluded"
    (wheel,) = build_wheels(bundle, tmp_path)
    assert verify_wheel(wheel) == []
    with zipfile.ZipFile(wheel) as archive:
        (text,) = [archive.read(name) for name in archive.namelist() if name.endswith("LICENSES.txt")]
        (path,) = [name for name in archive.namelist() if ".dist-info/sboms/" in name]
        (license,) = components(archive.read(path))["nvidia-cutlass-operators"]["licenses"]
        parts: list[str] = []
        for part in (Path(path).parent / license["license"]["url"]).as_posix().split("/"):
            parts = parts[:-1] if part == ".." else [*parts, part]
        assert archive.read("/".join(parts)) == licenses["nvidia-cutlass-operators.txt"]
    assert b"nvidia-cutlass-operators is under these terms" in text
    # Without the notice the bundle may not be given away.
    (bundle / "licenses/of-a-user.txt").unlink()
    references = parse_manifest((bundle / MANIFEST_NAME).read_bytes(), "m")
    del references["licenses/of-a-user.txt"]
    (bundle / MANIFEST_NAME).write_bytes(manifest_to_bytes(references))
    (problem,) = verify_path(bundle)
    assert problem.path == "licenses/of-a-user.txt"


def test_code_of_programs_is_in_the_bundle_and_its_wheel_with_its_licence(tmp_path: Path) -> None:
    licenses = {"ops.txt": b"Permission is hereby granted"}
    linked = tmp_path / "linked"
    linked.mkdir()
    programs = {"groups": (request_group(linked),), "rankings": ()}
    write_bundle(plan(linked, licenses=licenses, **programs), tmp_path / "bundle")
    (wheel,) = build_wheels(tmp_path / "bundle", tmp_path)
    assert verify_wheel(wheel) == []
    with zipfile.ZipFile(wheel) as archive:
        paths = [name for name in archive.namelist() if name.endswith("bundle.cdx.json")]
        assert len(paths) == 2
        for path in paths:
            code = {
                item["name"]: item
                for item in json.loads(archive.read(path))["components"]
                if item["bom-ref"].startswith("code ")
            }
            assert (code["ops"]["version"], code["ops"]["scope"]) == ("1.2.0", "required")
            place = (Path(path).parent / code["ops"]["licenses"][0]["license"]["url"]).as_posix()
            assert archive.read(posixpath.normpath(place)) == licenses["ops.txt"]
            # What the compiler writes is not under its licence.
            assert code["nvidia-cutlass-dsl"]["scope"] == "excluded"
        (text,) = [archive.read(name) for name in archive.namelist() if name.endswith("LICENSES.txt")]
    assert b"ops is under these terms" in text


def test_every_kernel_has_its_provenance(catalog: Catalog) -> None:
    made = entries()
    bill = bill_of_materials(catalog, made)
    generators = {item["name"]: item for item in json.loads(bill)["components"] if "components" in item}
    assert set(generators) == {"cutlass.operators", "sm90_gemm"}
    own = generators["sm90_gemm"]
    assert own["version"] == "1"
    assert properties(own) == {"cutlass-aot:sources-digest": digest(b"sm90_gemm")[:16]}
    (target,) = own["components"]
    assert target["name"] == made[0].kernel.target
    assert properties(target) == {
        "cutlass-aot:ptxas-version": made[0].facts.ptxas_version,
        "cutlass-aot:toolchain-sha256": "ab" * 32,
    }
    (kernel,) = target["components"]
    assert kernel["hashes"] == [{"alg": "SHA-256", "content": made[0].code.sha256}]
    assert properties(kernel) == {"cutlass-aot:object-sha256": made[0].object_sha256}
    assert read_bill(bill, "bill").kernels == kernels_of_index(made)
    assert bill_of_materials(catalog, made[::-1]) == bill


def test_a_kernel_costs_little(catalog: Catalog) -> None:
    """Two digests of 32 bytes do not compress; what a wheel has beside them for a kernel is small."""
    few, many = (len(zlib.compress(bill_of_materials(catalog, entries(count)), 6)) for count in (200, 400))
    assert (many - few) / 200 < 140


def test_a_bundle_and_its_wheel_have_it(tmp_path: Path) -> None:
    write_bundle(plan(tmp_path / "linked", provenance=PROVENANCE), tmp_path / "bundle")
    bundle = tmp_path / "bundle"
    bill = (bundle / "sbom" / "bundle.cdx.json").read_bytes()
    assert "sbom/bundle.cdx.json" in parse_manifest((bundle / MANIFEST_NAME).read_bytes(), "m")
    (wheel,) = build_wheels(bundle, tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [name for name in archive.namelist() if ".dist-info/sboms/" in name]
        own = json.loads(archive.read(path))
        (reference,) = own["metadata"]["component"]["externalReferences"]
        folder = Path(path).parent
        inside = (folder / reference["url"]).as_posix()
        # The reference leads to the bundle's bill from where the wheel's own is.
        parts: list[str] = []
        for part in inside.split("/"):
            parts = parts[:-1] if part == ".." else [*parts, part]
        assert archive.read("/".join(parts)) == bill
        assert reference["hashes"][0]["content"] == digest(bill)
    assert {item["name"] for item in own["components"]} == set(PROVENANCE) - {"toolchain"}


def test_the_bill_is_held_against_the_indices(tmp_path: Path) -> None:
    made = plan(tmp_path / "linked")
    write_bundle(made, tmp_path / "bundle")
    bundle = tmp_path / "bundle"
    catalog = read_catalog(bundle)
    others = [entry(kernel) for kernel in kernels()]
    wrong = bill_of_materials(catalog, others)
    for data, message in ((wrong, "other kernels than in the indices"), (b"{}", "not a readable bill")):
        path = bundle / "sbom" / "bundle.cdx.json"
        before = digest(path.read_bytes()), path.stat().st_size
        path.write_bytes(data)
        manifest = (bundle / MANIFEST_NAME).read_text()
        changed = manifest.replace(before[0], digest(data)).replace(
            f'"size": {before[1]}\n', f'"size": {len(data)}\n'
        )
        (bundle / MANIFEST_NAME).write_text(changed)
        (problem,) = verify_path(bundle)
        assert problem.path == "sbom/bundle.cdx.json"
        assert message in problem.found


def test_an_altered_bill_of_a_wheel_is_found(tmp_path: Path) -> None:
    write_bundle(plan(tmp_path / "linked"), tmp_path / "bundle")
    (wheel,) = build_wheels(tmp_path / "bundle", tmp_path / "wheels")
    altered = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as archive, zipfile.ZipFile(altered, "w") as out:
        for name in archive.namelist():
            data = archive.read(name)
            out.writestr(name, data.replace(b"CycloneDX", b"CyclonedX") if "sboms" in name else data)
    assert any("sboms/bundle.cdx.json" in problem.path for problem in verify_wheel(altered))


def deep(levels: int) -> bytes:
    body: dict[str, Any] = {"name": "x"}
    for _ in range(levels):
        body = {"name": "x", "components": [body]}
    return json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [body]}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"\xff", b"[" * 100_000, deep(100), b'{"bomFormat": "CycloneDX", "specVersion": "1.5"}',
        b'{"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [1]}',
        b'{"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [{"properties": [{}]}]}',
    ],
)  # fmt: skip
def test_what_is_no_bill_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptFile, match="x is no"):
        read_bill(data, "x")


def test_bills_are_valid_by_the_published_schema(catalog: Catalog) -> None:
    """But for the formats of dates and URIs, whose checkers take seconds to import and are not installed."""
    validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema")
    validator = validation.JsonStrictValidator(schema.SchemaVersion.V1_6)
    part = replace(catalog, variant="sm90a")
    for bill in (
        bill_of_materials(catalog, entries(9)),
        bill_of_materials(part, entries(1)),
        bill_of_wheel(catalog, "cutlass-aot-bundle-small", "../../a/bundle/sbom/bundle.cdx.json", "ab" * 32),
    ):
        assert validator.validate_str(bill.decode()) is None


@pytest.mark.parametrize("name", sorted(sbom._PACKAGES))
def test_licences_are_those_that_packages_state(name: str) -> None:
    """What the table says of the pinned versions, compared with the metadata of those that are installed."""
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    stated = " ".join(
        [about.get("License-Expression") or about.get("License") or "", *(about.get_all("Classifier") or [])]
    )
    expected = {"Apache-2.0": ("Apache-2.0", "Apache 2.0")}.get(
        sbom._PACKAGES[name].license, (sbom._PACKAGES[name].license,)
    )
    assert any(text in stated for text in expected)
