"""The names and texts of a bundle's wheel, except the bundle's own; they follow from the bundle's catalog.

Formats: the binary distribution format and core metadata specifications of the Python Packaging Authority,
https://packaging.python.org/en/latest/specifications/
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cutlass_aot import __version__
from cutlass_aot.bundle.glibc import platform_tags
from cutlass_aot.errors import BundleError
from cutlass_aot.schema.bundles.catalog import BUNDLE_NAME, VARIANT_NAME, Catalog
from cutlass_aot.schema.entry_points import BUNDLES
from cutlass_aot.schema.versions import major_minor, without_post
from cutlass_aot.schema.words import plural

PREFIX = "cutlass-aot-bundle-"
"""The names of all distributions of bundles begin with this."""

_NUMBER = "(?:0|[1-9][0-9]*)"
_VERSION = re.compile(
    rf"(?:[1-9][0-9]*!)?{_NUMBER}(?:\.{_NUMBER})*(?:(?:a|b|rc){_NUMBER})?"
    rf"(?:\.post{_NUMBER})?(?:\.dev{_NUMBER})?(?:\+[a-z0-9]+(?:\.[a-z0-9]+)*)?"
)
"""The normal form of a version. Source: version specifiers specification (PEP 440), "Normalization"."""


@dataclass(frozen=True, slots=True)
class WheelNames:
    """Every name in a bundle's wheel.

    Attributes:
        distribution: project name, such as ``cutlass-aot-bundle-sm100-dense``.
        tags: compatibility tags, such as ``py3-none-manylinux_2_28_x86_64``.
    """

    distribution: str
    version: str
    tags: tuple[str, ...]

    @property
    def package(self) -> str:
        """Import name, such as ``cutlass_aot_bundle_sm100_dense``."""
        return self.distribution.replace("-", "_")

    @property
    def dist_info(self) -> str:
        """Directory of the metadata."""
        return f"{self.package}-{self.version}.dist-info"

    @property
    def file_name(self) -> str:
        """The wheel's own name, with all of its platforms."""
        python, abi, _ = self.tags[0].split("-")
        platforms = ".".join(tag.split("-")[2] for tag in self.tags)
        return f"{self.package}-{self.version}-{python}-{abi}-{platforms}.whl"


def wheel_names(catalog: Catalog) -> WheelNames:
    """The names that follow from a bundle's catalog.

    A name, version, host or glibc that a wheel cannot have is a :class:`BundleError`.
    """
    if len(catalog.hosts) != 1:
        raise BundleError(
            f"bundle {catalog.name!r} has libraries for {', '.join(catalog.hosts) or 'no host'}, a wheel is "
            "for one host: pack it with cutlass-aot wheel, which makes a wheel for each"
        )
    if not VARIANT_NAME.fullmatch(catalog.variant):
        raise BundleError(
            f"variant {catalog.variant!r} of bundle {catalog.name!r} cannot name a wheel: expected "
            "lower-case letters and digits"
        )
    platforms = platform_tags(catalog.requirements.glibc, catalog.hosts[0])
    distribution = _distribution(catalog) + (f"-{catalog.variant}" if catalog.variant else "")
    return WheelNames(distribution, catalog.version, tuple(f"py3-none-{platform}" for platform in platforms))


def _distribution(catalog: Catalog) -> str:
    if not BUNDLE_NAME.fullmatch(catalog.name):
        raise BundleError(
            f"bundle name {catalog.name!r} cannot name a wheel: expected lower-case letters, digits, '.', "
            "'_' and '-', beginning and ending with a letter or a digit; change bundle.name in the manifest"
        )
    if not _VERSION.fullmatch(catalog.version):
        raise BundleError(
            f"bundle version {catalog.version!r} cannot be a wheel's: expected a normalised version such as "
            "1.2.0, 1.2rc1, 1.2.post1 or 1.2+cu13 (PEP 440); change bundle.version in the manifest"
        )
    # Names are compared in this form. Source: names and normalization specification (PEP 503).
    return PREFIX + re.sub(r"[-_.]+", "-", catalog.name)


def package_init(catalog: Catalog) -> bytes:
    """The package's only module: a docstring."""
    return (
        f'"""Kernels of the cutlass-aot bundle {catalog.name}; see cutlass_aot.open_installed."""\n'.encode()
    )


def entry_points(catalog: Catalog, names: WheelNames) -> bytes:
    """The file by which ``open_installed`` finds the bundle."""
    return f"[{BUNDLES}]\n{catalog.name} = {names.package}\n".encode()


LICENSES_NAME = "LICENSES.txt"
"""The file of licences, in the folder ``licenses`` of a wheel's metadata (PEP 639)."""


def licenses_text(licenses: Mapping[str, bytes]) -> bytes:
    """The licences of what is in a bundle, one after the other, each after the name of its file.

    A wheel's metadata must have the texts. The bundle has each as a file of its own, but checkers of wheels
    would report the same files twice in a wheel.
    """
    return b"\n".join(
        f"What is in it of {name.removesuffix('.txt')} is under these terms:\n\n".encode() + text
        for name, text in sorted(licenses.items())
    )


def metadata(catalog: Catalog, names: WheelNames, licensed: bool, release: str = __version__) -> bytes:
    """METADATA of a bundle's wheel; ``licensed`` says whether the bundle has texts of licences.

    ``release`` is the release of this package that packs the wheel; the one that runs it must have the same
    minor version.
    """
    count = plural(sum(group.kernel_count for group in catalog.groups), "kernel")
    summary = f"cutlass-aot bundle {catalog.name}: {count} for {' '.join(catalog.targets)}"
    requires = [
        f"cutlass-aot{_same_minor(release, from_minor=True)}",
        f"apache-tvm-ffi{_same_minor(catalog.requirements.tvm_ffi)}",
    ]
    return _metadata(catalog.name, names, summary, requires, [LICENSES_NAME] if licensed else [])


def _metadata(
    name: str, names: WheelNames, summary: str, requires: Sequence[str], licenses: Sequence[str]
) -> bytes:
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {names.distribution}",
        f"Version: {names.version}",
        f"Summary: {summary}",
        "Classifier: Environment :: GPU :: NVIDIA CUDA",
        "Classifier: Operating System :: POSIX :: Linux",
        "Classifier: Programming Language :: Python :: 3 :: Only",
        # No License-Expression: the manifest does not say whose kernels these are.
        *(f"License-File: {path}" for path in licenses),
        "Requires-Python: >=3.10",
        *(f"Requires-Dist: {requirement}" for requirement in requires),
        "Description-Content-Type: text/plain",
        "",
        f"{summary}.",
        "",
        f"Open it with cutlass_aot.open_installed({name!r}). The package holds data alone.",
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def wheel_file(names: WheelNames, release: str = __version__) -> bytes:
    """WHEEL: the kind of wheel, and the release of this package that packed it."""
    tags = "".join(f"Tag: {tag}\n" for tag in names.tags)
    return (f"Wheel-Version: 1.0\nGenerator: cutlass-aot {release}\nRoot-Is-Purelib: false\n{tags}").encode()


_GENERATOR = re.compile(rf"^Generator: cutlass-aot ({_VERSION.pattern})$", re.MULTILINE)
_MAX_RELEASE = 64


def release_of(wheel: str) -> str:
    """The release of this package that a wheel's WHEEL names; this release if it names none."""
    match = _GENERATOR.search(wheel)
    # A longer text could hold numbers of any length, which are parsed later.
    return match[1] if match and len(match[1]) <= _MAX_RELEASE else __version__


def _same_minor(version: str, *, from_minor: bool = False) -> str:
    """Version specifier for releases of the same minor version, all of them or those from ``version`` on.

    A post release counts as its release, as it does where a bundle is opened.
    """
    if not _VERSION.fullmatch(version):
        raise BundleError(f"{version!r} is not a version: expected one such as 0.1.15; build again")
    major, minor = major_minor(version)
    # Specifiers with >= allow no local version. Source: PEP 440, "Inclusive ordered comparison".
    first = f"{major}.{minor}" if from_minor else without_post(version)
    return f">={first},<{major}.{minor + 1}"
