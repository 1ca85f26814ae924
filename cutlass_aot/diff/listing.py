"""The kernels of a bundle, of a build's report or of a plan, as far as each knows them.

A report (``build --report``) holds its listing as JSON in the page, which the page's own list shows, too. A
plan is the output of ``plan --json``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cutlass_aot.errors import BundleError, CorruptFile
from cutlass_aot.runtime.bundle import open_bundle
from cutlass_aot.runtime.files.regular_file import open_regular
from cutlass_aot.runtime.files.verified_read import manifest_bytes, read_file, read_manifest
from cutlass_aot.runtime.installed import directory_of
from cutlass_aot.schema.encoding import MALFORMED
from cutlass_aot.schema.tuning.ranking import Ranking

ELEMENT = '<script type="application/json" id="listing">'
"""The beginning of the element of a page that holds its listing."""

MAX_BYTES = 256 << 20
"""Most bytes of a report or a plan that are read."""

NUMBERS = {
    "registers": "registers",
    "spill_bytes": "spills",
    "static_bytes": "static shared memory",
    "dynamic_bytes": "dynamic shared memory",
    "code_bytes": "GPU code",
    "object_bytes": "object",
}
"""The numbers of a kernel that are compared, and what they are called."""

_COLUMNS = ("group", "design", "target", "state", "sha256", "seconds", *NUMBERS)


@dataclass(frozen=True, slots=True)
class ListedKernel:
    """One kernel; what is not known of it is None, or ``""``.

    Attributes:
        name: its whole name, which has the beginning of its digest.
        state: of a report: ``compiled``, ``present``, ``shared``, ``failed`` or ``open``.
        key: in the store, of a plan: the digest of the kernel, its generator and the toolchain.
        sha256: of its object.
        seconds: that compiling it took.
        dynamic_bytes: shared memory of a block that its launch asks for beside the static.
    """

    group: str
    design: str
    target: str
    state: str = ""
    key: str = ""
    sha256: str = ""
    seconds: float | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    static_bytes: int | None = None
    dynamic_bytes: int | None = None
    code_bytes: int | None = None
    object_bytes: int | None = None

    @property
    def name(self) -> str:
        """The whole name of the kernel."""
        return "-".join(filter(None, (self.group, self.design)))


@dataclass(frozen=True, slots=True)
class Listing:
    """What is compared.

    Attributes:
        what: ``bundle``, ``report`` or ``plan``.
        size: bytes of the bundle; None if there is none.
        times: measured microseconds by kernel's name, GPU and problem.
    """

    what: str
    title: str
    size: int | None
    kernels: tuple[ListedKernel, ...]
    times: Mapping[tuple[str, str, str], float] = field(default_factory=dict)

    def to_json(self) -> str:
        """JSON for an element of a page: no ``<`` in it ends the element."""
        rows = [[getattr(kernel, column) for column in _COLUMNS] for kernel in self.kernels]
        body = {"title": self.title, "size": self.size, "columns": _COLUMNS, "kernels": rows}
        return json.dumps(body, separators=(",", ":")).replace("<", "\\u003c")


def read_listing(named: str) -> Listing:
    """The listing of a bundle's directory, an installed bundle, a report's page, or a plan's JSON."""
    path = Path(named)
    if not path.is_file():
        expected = "a directory, a report that `build --report` wrote, the output of `plan --json`"
        return _of_bundle(directory_of(named, expected))
    try:
        with os.fdopen(open_regular(path, follow=True), "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise CorruptFile(f"{path} has more than {MAX_BYTES} bytes, as no report or plan has")
    text = data.decode("utf-8", "replace")
    try:
        if ELEMENT in text:
            return _of_report(json.loads(text.split(ELEMENT, 1)[1].split("</script>", 1)[0]))
        return _of_plan(json.loads(text), str(path))
    except (*MALFORMED, RecursionError):
        raise CorruptFile(
            f"{path} is neither a report that this release of `cutlass-aot build --report` wrote, nor the "
            "output of `cutlass-aot plan --json`: expected one of these, or a bundle"
        ) from None


def _of_bundle(path: Path) -> Listing:
    bundle = open_bundle(path, check=False)
    handles = bundle.kernels()
    names = {handle.digest: handle.name for handle in handles}
    times = {}
    for group in bundle.groups:
        for reference in group.rankings:
            if not reference.measured:
                continue
            data = read_file(path, reference.file)
            for problem in Ranking.from_bytes(data, str(path / reference.file.path)).problems:
                for digest, seconds in zip(problem.kernels, problem.seconds, strict=False):
                    name = names.get(digest, digest)
                    times[name, reference.gpu, str(problem.extents)] = seconds * 1e6
    kernels = tuple(
        ListedKernel(
            group=handle.kernel.group_name,
            design=handle.name.removeprefix(f"{handle.kernel.group_name}-"),
            target=handle.target,
            sha256=handle.entry.object_sha256,
            registers=handle.facts.registers,
            spill_bytes=handle.facts.spill_bytes,
            static_bytes=handle.facts.shared_memory_bytes,
            code_bytes=handle.facts.cubin_bytes,
        )
        for handle in handles
    )
    return Listing("bundle", f"{bundle.name} {bundle.version}", bundle_size(path), kernels, times)


def bundle_size(path: Path) -> int:
    """Bytes of the files that a bundle's manifest lists, and of the manifest."""
    return len(manifest_bytes(path)) + sum(file.size for file in read_manifest(path).values())


def _of_report(body: Any) -> Listing:
    kernels = tuple(ListedKernel(**dict(zip(body["columns"], row, strict=True))) for row in body["kernels"])
    return Listing("report", str(body["title"]), body["size"], kernels)


def _of_plan(body: Any, title: str) -> Listing:
    kernels = tuple(
        ListedKernel(
            group=item["group"],
            design=item["name"].removeprefix(f"{item['group']}-"),
            target=item["target"],
            state="to build" if item["build"] else "present",
            key=item["key"],
            sha256=item["object_sha256"] or "",
            seconds=item["seconds"],
            **{name: item[name] for name in NUMBERS if name in item},
        )
        for item in body["kernels"]
    )
    return Listing("plan", title, None, kernels)
