"""The bill of materials of a bundle: the packages it was made with, its kernels, and their provenance.

Format: CycloneDX 1.6 in JSON, https://cyclonedx.org/docs/1.6/json/. It has neither times nor a random serial
number, so that equal bundles have equal bills. Kernels are nested in their target, targets in their
generator::

    generator, with the digest of its sources
      GPU code target, with the assembler's version and the compiler's fingerprint
        kernel, with the SHA-256 of its GPU code, and that of the object that compiling it gave

Code that kernels of programs are made from is listed beside the packages, with the digest of its files. What
is in the bundle has the scope ``required``, and names the file with its licence.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cutlass_aot.bundle.files import LICENSES
from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.bundles.catalog import Catalog
from cutlass_aot.schema.bundles.group_index import KernelEntry
from cutlass_aot.schema.requests.request import Request

BILL_FOLDER = "sbom"
BILL_NAME = "bundle.cdx.json"
"""The bill's file in a bundle, and in a wheel's metadata (PEP 770)."""

SPECIFICATION = "1.6"
_OBJECT = "cutlass-aot:object-sha256"
_CODE = "cutlass-aot:code-digest"
_NO_VERSION = "-"
_FAR = 64
"""How deep a bill's components may be nested; ours are three deep."""


class Code(NamedTuple):
    """Code that kernels of programs are made from, with the digest of its files.

    It is a distribution, or a module or package of none, and then ``version`` is ``""``.
    """

    name: str
    version: str
    digest: str


class Bill(NamedTuple):
    """What a bundle's bill lists; a kernel by its name, digest of its GPU code and digest of its object.

    ``licenses`` are paths in the bundle, of the licences of what is in it.
    """

    kernels: set[tuple[str, str, str]]
    code: set[Code]
    licenses: set[str]


class _Package(NamedTuple):
    """What is known of a package that bundles are made with.

    Attributes:
        license: an SPDX identifier if ``spdx``, else the words of its own metadata.
        scope: ``required`` if it is in the bundle or needed to load it, ``excluded`` if it only built it.
    """

    role: str
    license: str
    spdx: bool = True
    scope: str = "excluded"


_SOURCES = "sources of kernels"
_COMPILER = _Package("compiles kernels", "Other/Proprietary License", spdx=False)
_PROGRAMS = _Package("code of programs, in kernels", "", scope="required")
_HEADERS = _Package("headers of CUDA", "LicenseRef-NVIDIA-Proprietary", spdx=False)
# Where these packages decide the bytes, their versions are pinned, and so are their licences.
_PACKAGES: Mapping[str, _Package] = {
    "apache-tvm-ffi": _Package(
        "calling convention; loaded beside the libraries", "Apache-2.0", scope="required"
    ),
    "cutlass-aot": _Package("shim and launcher, linked in", "Apache-2.0", scope="required"),
    "nvidia-cuda-crt": _HEADERS,
    "nvidia-cuda-runtime": _HEADERS,
    "nvidia-cutlass-dsl": _COMPILER,
    "nvidia-cutlass-operators": _Package(_SOURCES, "BSD-3-Clause"),
    "ziglang": _Package("compiles and links host code; the C library's interface", "MIT"),
    "zstandard": _Package("compresses code and libraries; opens them", "BSD-3-Clause", scope="required"),
}


def bill_of_materials(
    catalog: Catalog,
    kernels: Iterable[KernelEntry],
    requests: Iterable[Request] = (),
    licenses: Collection[str] = (),
) -> bytes:
    """The canonical bill of a bundle, from all of its kernels and requests, both in any order.

    ``licenses`` are the names of its files of licences, ``DISTRIBUTION.txt``.
    """
    packages = _packages(catalog, requests, _places(licenses, f"../{LICENSES}"))
    bundle = {
        "type": "library",
        "bom-ref": "bundle",
        "name": catalog.name,
        "version": catalog.version,
        "properties": _properties(
            {
                "cutlass-aot:device": catalog.device,
                "cutlass-aot:hosts": " ".join(catalog.hosts),
                "cutlass-aot:variant": catalog.variant,
                "cutlass-aot:targets": " ".join(catalog.targets),
            }
        ),
    }
    generators = _generators(kernels)
    everything = [item["bom-ref"] for item in (*packages, *generators)]
    return _text(bundle, [*packages, *generators], [{"ref": "bundle", "dependsOn": everything}])


def bill_of_wheel(
    catalog: Catalog,
    name: str,
    path: str,
    sha256: str,
    requests: Iterable[Request] = (),
    licenses: Collection[str] = (),
) -> bytes:
    """The bill of the distribution ``name``, a bundle's wheel: its packages, and a link to the bundle's bill.

    The latter has the digest ``sha256``; ``path`` leads to it from the folder of the wheel's bill.
    ``requests`` and ``licenses`` are as in :func:`bill_of_materials`.
    """
    packages = _packages(catalog, requests, _places(licenses, f"{path.rsplit('/', 2)[0]}/{LICENSES}"))
    wheel = {
        "type": "library",
        "bom-ref": "wheel",
        "name": name,
        "version": catalog.version,
        "purl": _purl(name, catalog.version),
        "externalReferences": [
            {
                "type": "bom",
                "url": path,
                "comment": "every kernel, with its provenance",
                "hashes": [{"alg": "SHA-256", "content": sha256}],
            }
        ],
    }
    return _text(wheel, packages, [{"ref": "wheel", "dependsOn": [item["bom-ref"] for item in packages]}])


def most_bytes(listed: int) -> int:
    """Most bytes of a bill for so many kernels and requests, of which each takes about 370."""
    return (1 << 20) + (listed << 12)


def read_bill(data: bytes, what: str) -> Bill:
    """Read a bundle's bill of untrusted origin; errors call it ``what``."""
    try:
        body = json.loads(data.decode("utf-8"))
        if (body["bomFormat"], body["specVersion"]) != ("CycloneDX", SPECIFICATION):
            raise CorruptFile(f"{what} is not a bill of materials of CycloneDX {SPECIFICATION}")
        code = {
            Code(str(component["name"]), str(component.get("version", "")), str(item["value"]))
            for component in body["components"]
            for item in component.get("properties", ())
            if item["name"] == _CODE
        }
        licenses = {
            url.removeprefix("../")
            for component in body["components"]
            for item in component.get("licenses", ())
            if str(url := item["license"].get("url", "")).startswith(f"../{LICENSES}/")
        }
        return Bill(set(_listed(body["components"], 0)), code, licenses)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFile(f"{what} is not a readable bill of materials: {error!r}") from None


def _listed(components: Sequence[Mapping[str, Any]], depth: int) -> Iterator[tuple[str, str, str]]:
    if depth > _FAR:
        raise ValueError("components nested too deep")
    for component in components:
        for item in component.get("properties", ()):
            if item["name"] == _OBJECT:
                yield str(component["name"]), str(component["hashes"][0]["content"]), str(item["value"])
        yield from _listed(component.get("components", ()), depth + 1)


def kernels_of_index(kernels: Iterable[KernelEntry]) -> set[tuple[str, str, str]]:
    """These kernels as a bill lists them."""
    return {(entry.kernel.name, entry.code.sha256, entry.object_sha256) for entry in kernels}


def code_of_requests(requests: Iterable[Request]) -> set[Code]:
    """The code of these requests as a bill lists it."""
    found = set()
    for request in requests:
        for name, value in request.code.items():
            version, _, code_digest = value.rpartition(" ")
            found.add(Code(name, "" if version == _NO_VERSION else version, code_digest))
    return found


def _places(licenses: Collection[str], folder: str) -> dict[str, str]:
    """Distribution to where its licence is, for those that have a file of their own."""
    return {name.removesuffix(".txt"): f"{folder}/{name}" for name in licenses}


def _code_component(code: Code, places: Mapping[str, str]) -> dict[str, Any]:
    # The compiler's licence is about itself, not about what it writes.
    known = _COMPILER if _PACKAGES.get(code.name) is _COMPILER else _PROGRAMS
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"code {code.name} {code.version} {code.digest}",
        "name": code.name,
        "scope": known.scope,
        "properties": _properties({"cutlass-aot:role": known.role, _CODE: code.digest}),
    }
    # The name may be that of a folder in it.
    distribution = code.name.partition("/")[0]
    if distribution in places:
        component["licenses"] = [_license(distribution, _PACKAGES.get(distribution), places[distribution])]
    if code.version:
        component |= {"version": code.version, "purl": _purl(distribution, code.version)}
    return component


def _license(name: str, known: _Package | None, place: str) -> dict[str, Any]:
    license: dict[str, Any]
    if known is None:
        license = {"name": f"the terms of {name}"}
    else:
        license = {"id": known.license} if known.spdx else {"name": known.license}
    return {"license": {**license, "url": place} if place else license}


def _packages(
    catalog: Catalog, requests: Iterable[Request], places: Mapping[str, str]
) -> list[dict[str, Any]]:
    """What the bundle was made with, what it needs to be loaded, and the code of its programs."""
    versions = {name: version for name, version in catalog.provenance.items() if name != "toolchain"}
    versions.setdefault("apache-tvm-ffi", catalog.requirements.tvm_ffi)
    packages = [_component(name, version, places.get(name, "")) for name, version in sorted(versions.items())]
    return packages + [_code_component(item, places) for item in sorted(code_of_requests(requests))]


def _component(name: str, version: str, place: str) -> dict[str, Any]:
    """A package; ``place`` is that of its licence if it is in the bundle, else ``""``."""
    # Parts of the compiler come as packages whose names begin with its own.
    known = _PACKAGES.get(name) or (_COMPILER if name.startswith("nvidia-cutlass-dsl-") else None)
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"package {name}",
        "name": name,
        "version": version,
        "purl": _purl(name, version),
    }
    if known is not None or place:
        role = _SOURCES if known is None else known.role
        component |= {
            "scope": "required" if known is None or place else known.scope,
            "licenses": [_license(name, known, place)],
            "properties": _properties(
                {"cutlass-aot:role": f"{role}, in kernels" if place and role == _SOURCES else role}
            ),
        }
    return component


def _purl(name: str, version: str) -> str:
    """A package URL, with ``+`` percent-encoded. Source: https://github.com/package-url/purl-spec."""
    return f"pkg:pypi/{name}@{version.replace('+', '%2B')}"


def _generators(kernels: Iterable[KernelEntry]) -> list[dict[str, Any]]:
    tree: dict[tuple[str, str], dict[tuple[str, str, str], list[KernelEntry]]] = {}
    for entry in kernels:
        version = entry.provenance.get("generator_version", "")
        toolchain = entry.provenance.get("toolchain", "")
        targets = tree.setdefault((entry.kernel.generator, version), {})
        by = entry.kernel.target, entry.facts.ptxas_version, toolchain
        targets.setdefault(by, []).append(entry)
    return [_generator(name, version, targets) for (name, version), targets in sorted(tree.items())]


def _generator(
    name: str, version: str, targets: Mapping[tuple[str, str, str], Sequence[KernelEntry]]
) -> dict[str, Any]:
    number, _, sources = version.partition("+")
    return {
        "type": "application",
        "bom-ref": f"generator {name} {version}",
        "name": name,
        "version": number,
        "properties": _properties({"cutlass-aot:sources-digest": sources}),
        "components": [
            {
                "type": "platform",
                "name": target,
                "properties": _properties(
                    {"cutlass-aot:ptxas-version": ptxas, "cutlass-aot:toolchain-sha256": toolchain}
                ),
                "components": [_kernel(entry) for entry in sorted(entries, key=_in_order)],
            }
            for (target, ptxas, toolchain), entries in sorted(targets.items())
        ],
    }


def _in_order(entry: KernelEntry) -> tuple[str, str]:
    return entry.kernel.name, entry.kernel.digest


def _kernel(entry: KernelEntry) -> dict[str, Any]:
    return {
        "type": "library",
        "name": entry.kernel.name,
        "hashes": [{"alg": "SHA-256", "content": entry.code.sha256}],
        "properties": _properties({_OBJECT: entry.object_sha256}),
    }


def _properties(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items() if value]


def _text(
    subject: Mapping[str, Any], components: Sequence[Mapping[str, Any]], dependencies: Sequence[Any]
) -> bytes:
    body = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPECIFICATION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "version": 1,
        "metadata": {"lifecycles": [{"phase": "build"}], "component": subject},
        "components": components,
        "dependencies": dependencies,
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
