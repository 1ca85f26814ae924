"""What the runtime imports, in a fresh interpreter, checked against an allow-list."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bundles import designs, write_bundle

ALLOWED_PACKAGES = {"cutlass_aot", "msgpack"}
"""Packages outside the standard library that opening a bundle and finding a kernel may import."""

ALLOWED_MODULES = {
    "cutlass_aot",
    "cutlass_aot.errors",
    "cutlass_aot.runtime",
    "cutlass_aot.runtime.bundle",
    "cutlass_aot.runtime.dispatch",
    "cutlass_aot.runtime.files",
    "cutlass_aot.runtime.files.trust",
    "cutlass_aot.runtime.files.verified_read",
    "cutlass_aot.runtime.launching",
    "cutlass_aot.runtime.launching.call",
    "cutlass_aot.runtime.launching.code_cache",
    "cutlass_aot.runtime.launching.native",
    "cutlass_aot.runtime.launching.gpu_code",
    "cutlass_aot.runtime.launching.library",
    "cutlass_aot.runtime.launching.tensors",
    "cutlass_aot.runtime.machine",
    "cutlass_aot.runtime.machine.compatibility",
    "cutlass_aot.runtime.machine.cuda_driver",
    "cutlass_aot.runtime.machine.host",
    "cutlass_aot.runtime.machine.process_lock",
    "cutlass_aot.runtime.opened",
    "cutlass_aot.runtime.opened.bundle_directory",
    "cutlass_aot.runtime.opened.finder",
    "cutlass_aot.runtime.opened.filters",
    "cutlass_aot.runtime.opened.group",
    "cutlass_aot.runtime.opened.kernel_handle",
    "cutlass_aot.runtime.opened.native_choice",
    "cutlass_aot.runtime.selection",
    "cutlass_aot.runtime.selection.correction",
    "cutlass_aot.runtime.selection.cost_model",
    "cutlass_aot.runtime.selection.match",
    "cutlass_aot.runtime.selection.query",
    "cutlass_aot.runtime.selection.tiers",
    "cutlass_aot.schema",
    "cutlass_aot.schema.bundles",
    "cutlass_aot.schema.bundles.catalog",
    "cutlass_aot.schema.bundles.group_index",
    "cutlass_aot.schema.bundles.rows",
    "cutlass_aot.schema.bundles.tiling_table",
    "cutlass_aot.schema.codec",
    "cutlass_aot.schema.encoding",
    "cutlass_aot.schema.kernels",
    "cutlass_aot.schema.kernels.accumulation",
    "cutlass_aot.schema.kernels.artifact",
    "cutlass_aot.schema.kernels.constraints",
    "cutlass_aot.schema.kernels.design",
    "cutlass_aot.schema.kernels.dtypes",
    "cutlass_aot.schema.kernels.kernel",
    "cutlass_aot.schema.kernels.operands",
    "cutlass_aot.schema.kernels.tiling",
    "cutlass_aot.schema.named_tuple",
    "cutlass_aot.schema.targets",
    "cutlass_aot.schema.tuning",
    "cutlass_aot.schema.tuning.costs",
    "cutlass_aot.schema.tuning.ranking",
    "cutlass_aot.schema.versions",
    "cutlass_aot.schema.words",
}

FORBIDDEN = (
    "click", "cuda", "cutlass", "cupy", "filelock", "numpy", "rich", "torch", "tvm_ffi", "ziglang",
    "zstandard",
)  # fmt: skip
"""What is imported at the first launch, when something is unpacked, or never."""

# What an installation's .pth files import at start-up is not ours, hence the difference.
REPORT = """
import json, sys
before = set(sys.modules)
{body}
print(json.dumps(sorted(set(sys.modules) - before)))
"""

FIND = """
import cutlass_aot
d = cutlass_aot.describe
bundle = cutlass_aot.open({path!r})
operands = d((64, 64), "f16"), d((64, 64), "f16", strides=(1, 64)), d((64, 64), "f16")
assert bundle.find(*operands)[0].supports(*operands)
assert len(bundle.explain(*operands)) == 1
assert len(bundle.kernels()) == 3
"""


def imported(body: str) -> set[str]:
    result = subprocess.run(
        [sys.executable, "-c", REPORT.format(body=body)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout))


def test_importing_the_package_imports_itself_and_the_standard_library() -> None:
    modules = imported("import cutlass_aot")
    assert {name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names} == {
        "cutlass_aot"
    }
    # No part of the standard library that is dear: this is what an application pays at its start.
    assert len(modules) < 10


def test_finding_a_kernel_imports_the_runtime_alone(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "bundle", designs())
    modules = imported(FIND.format(path=str(root)))
    foreign = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names
    # msgpack's extension module registers helpers of Cython's under names of their own.
    assert {name for name in foreign if "cython" not in name} <= ALLOWED_PACKAGES
    assert {name for name in modules if name.partition(".")[0] == "cutlass_aot"} == ALLOWED_MODULES


def test_choosing_a_kernel_imports_nothing_that_a_launch_does_not_need(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "bundle", designs())
    choose = FIND[: FIND.index("assert")] + "bundle.choose(*operands)"
    modules = {name for name in imported(choose.format(path=str(root))) if name.startswith("cutlass_aot")}
    not_needed = {
        "cutlass_aot.runtime.opened.filters",
        "cutlass_aot.schema.kernels.kernel",
        "cutlass_aot.schema.words",
    }
    assert not_needed < ALLOWED_MODULES
    assert modules == ALLOWED_MODULES - not_needed


@pytest.mark.parametrize(
    "module",
    [
        "runtime.launching.gpu_code",
        "runtime.launching.dlpack",
        "doctor.machine",
        "runtime.installed",
        "runtime.opened.request_finder",
    ],
)
def test_no_module_of_the_runtime_imports_what_it_may_not_need(module: str) -> None:
    modules = imported(f"import cutlass_aot.{module}")
    assert not {name.partition(".")[0] for name in modules} & set(FORBIDDEN)


def test_the_runtime_works_where_nothing_else_is_installed(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "bundle", designs())
    blocked = f"import sys\nfor name in {FORBIDDEN}: sys.modules[name] = None\n"
    assert imported(blocked + FIND.format(path=str(root)))


def test_every_error_is_exported() -> None:
    assert imported(
        "import cutlass_aot\n"
        "assert 'cutlass_aot.errors' not in sys.modules\n"
        "for name in cutlass_aot.errors.__all__:\n"
        "    assert name in cutlass_aot.__all__, name\n"
        "    assert getattr(cutlass_aot, name) is getattr(cutlass_aot.errors, name)"
    )


def test_public_names_resolve() -> None:
    assert imported(
        "import cutlass_aot\n"
        "for name in cutlass_aot.__all__: getattr(cutlass_aot, name)\n"
        "assert set(cutlass_aot.__all__) <= set(dir(cutlass_aot))\n"
        "try: cutlass_aot.nothing\n"
        "except AttributeError as error: assert 'nothing' in str(error)\n"
        "else: raise SystemExit('an unknown name resolved')"
    )


def test_garbage_is_not_collected_while_the_package_imports_its_modules() -> None:
    script = """
import gc
import cutlass_aot

collections = []
gc.callbacks.append(lambda phase, info: collections.append(phase))
# One is due after every allocation.
gc.set_threshold(1)
cutlass_aot.open
during = len(collections)
gc.callbacks.clear()
assert gc.isenabled()
gc.disable()
cutlass_aot.kernel
assert not gc.isenabled()
print(during)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    # One may run before it is disabled, and counts at its start and its end; without that there are 45,000.
    assert int(done.stdout) < 10


def test_named_tuples_of_these_modules_are_cheap_to_define() -> None:
    def imports_it(module: str) -> bool:
        tree = ast.parse(source_of(module))
        found = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "typing"]
        return any(alias.name == "NamedTuple" for node in found for alias in node.names)

    assert not [module for module in sorted(ALLOWED_MODULES) if imports_it(module)]


def source_of(module: str) -> str:
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).read_text()
