"""Requests of programs answered from bundles, with functions of small C libraries that run on the host."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import cutlass_aot
from cutlass_aot.errors import (
    BundleError,
    CorruptFile,
    DeviceError,
    Incompatible,
    KernelNotFound,
    LaunchError,
)
from cutlass_aot.programs.serve.explain import explain_miss
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.schema.bundles.catalog import CATALOG_NAME, Groups
from cutlass_aot.schema.requests.request import CallByName, CompiledRequest
from cutlass_aot.schema.requests.request_index import requests_to_bytes
from tests.support import bundles
from tests.support.bundles import REQUIREMENTS, designs, write_bundle
from tests.support.native import compile_c
from tests.support.replace import replace
from tests.support.requests import compiled

tvm_ffi = pytest.importorskip("tvm_ffi")

# Gives back, of the integers it is called with, the sum of position times value, plus a number of its own.
HEADER = """
#include <stdint.h>
#include <tvm/ffi/c_api.h>

static int answer(const TVMFFIAny *args, int32_t count, TVMFFIAny *result, int64_t own) {
  for (int i = 0; i < count; i++) own += (i + 1) * (args[i].type_index == kTVMFFIInt ? args[i].v_int64 : 0);
  result->type_index = kTVMFFIInt;
  result->v_int64 = own;
  return 0;
}
"""
FUNCTION = """
__attribute__((visibility("default"))) uint64_t cutlass_aot_code_%s[2];
__attribute__((visibility("default")))
int __tvm_ffi_%s(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  return answer(args, count, result, %d);
}
"""
BY_NAME = CallByName(("x", "y"), (7,), ("z",), {"z": None})


def norm(n: int, call: CallByName | None = None, **changes: Any) -> CompiledRequest:
    return compiled(call, configuration={"object": "ops.norm:Norm", "fields": {"N": n}}, **changes)


NORMS = [norm(64), norm(128, BY_NAME), norm(64, target="sm_100a", device={"sm_count": 148})]
SOFTMAX = compiled(callable="ops.softmax:softmax", configuration=None)
ALL = [*NORMS, SOFTMAX]


def write(root: Path, requests: Sequence[CompiledRequest], own: int = 0, **how: Any) -> Path:
    """A bundle that answers requests with functions of the host, each with a number from ``own`` on."""
    root.parent.mkdir(parents=True, exist_ok=True)
    symbols = [compiled.request.kernel.symbol for compiled in requests]
    source = HEADER + "".join(FUNCTION % (symbol, symbol, own + n) for n, symbol in enumerate(symbols))
    data = compile_c(root.parent, f"{root.name}-functions", source)
    names = {compiled.request.kernel.group_name for compiled in requests}
    return write_bundle(root, (), requests=requests, libraries=dict.fromkeys(names, data), **how)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("requests") / "bundle", ALL)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may ask for a GPU."""

    def refuse(*arguments: Any) -> Any:
        raise DeviceError("a GPU was asked for")

    for name in ("compute_capability", "driver_version", "sm_count", "device_name"):
        monkeypatch.setattr(cuda_driver, name, refuse)


def test_a_request_is_answered_by_its_compiled_function(root: Path) -> None:
    bundle = cutlass_aot.open(root)
    for number, requested in enumerate(ALL):
        found = bundle.compiled(requested.request)
        assert found is not None
        assert found.call == requested.call
        assert found.kernel.digest == requested.request.kernel.digest
        assert found.function(10, 20) == 10 + 2 * 20 + number
        assert bundle.compiled(replace(requested.request)) is found


def test_a_function_without_names_is_the_bare_one(root: Path) -> None:
    found = cutlass_aot.open(root).compiled(NORMS[0].request)
    assert found is not None
    # What the DSL returns is one too: a call costs no more.
    assert type(found.function) is tvm_ffi.Function


def test_arguments_by_name_keywords_and_defaults(root: Path) -> None:
    found = cutlass_aot.open(root).compiled(NORMS[1].request)
    assert found is not None
    assert found.function(1) == 1 + 2 * 7 + 1
    assert found.function(1, 2) == found.function(y=2, x=1) == 1 + 2 * 2 + 1
    assert found.function(1, z=5) == 1 + 2 * 7 + 3 * 5 + 1
    with pytest.raises(TypeError, match="argument"):
        found.function()
    with pytest.raises(TypeError, match="unexpected keyword argument 'w'"):
        found.function(1, w=1)
    # As of the DSL's functions: what takes arguments in order, and which these are.
    in_order = found.function.__tvm_ffi_object__()
    assert type(in_order) is tvm_ffi.Function
    assert in_order(1, 2, 0) == found.function(1, 2)
    assert list(inspect.signature(found.function).parameters) == ["x", "y", "z"]


@dataclass
class Pair:
    first: int
    second: int


def test_a_dataclass_is_passed_as_its_fields(tmp_path: Path) -> None:
    requested = norm(64, CallByName(("pair", "n"), dataclasses=("pair",)))
    found = cutlass_aot.open(write(tmp_path / "b", [requested])).compiled(requested.request)
    assert found is not None
    assert found.function(Pair(1, 2), 3) == found.function(n=3, pair=Pair(1, 2)) == 2 * 3


def test_what_the_bundle_does_not_have_is_none(root: Path) -> None:
    bundle = cutlass_aot.open(root)
    for changes in ({"options": {}}, {"target": "sm_103a"}, {"callable": "ops.other:f"}, {"arguments": {}}):
        assert bundle.compiled(replace(NORMS[0].request, **changes)) is None
    plain = cutlass_aot.open(write_bundle(root.parent / "gemm", designs()))
    assert plain.compiled(NORMS[0].request) is None
    assert (plain.requests.count, plain.requests.nearest(NORMS[0].request)) == (0, None)
    assert plain.requests.targets == ()


def test_every_request_is_listed_once(root: Path) -> None:
    requests = cutlass_aot.open(root).requests
    assert {found.digest for found in requests.requests()} == {requested.request.digest for requested in ALL}
    assert set(requests.digests()) == {requested.request.digest for requested in ALL}
    assert requests.count == len(ALL)
    assert requests.targets == ("sm_100a", "sm_90a")


def test_the_nearest_request_is_of_the_same_callable_and_differs_least(root: Path) -> None:
    requests = cutlass_aot.open(root).requests
    found = requests.nearest(norm(96).request)
    assert found is not None
    assert found[0].target == "sm_90a"
    (difference,) = found[1]
    assert difference[:2] == ("configuration.fields.N", "96")
    found = requests.nearest(norm(128, target="sm_103a", device={"sm_count": 148}).request)
    assert found is not None
    assert [difference.path for difference in found[1]] in (
        ["configuration.fields.N", "target"], ["target", "device.sm_count"],
    )  # fmt: skip
    found = requests.nearest(replace(SOFTMAX.request, callable="ops.other:softmax"))
    assert found is not None
    assert found[0] == SOFTMAX.request
    assert [difference.path for difference in found[1]] == ["callable"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, r"configuration\.fields\.N is 96, and \d+ in the bundle\. Add this call to the program"),
        ({"target": "sm_103a"}, r": target is 'sm_103a', and .* in the bundle; .* Add sm_103a to the"),
        ({"device": {"sm_count": 114}}, r"device\.sm_count is 114, and 132 in the bundle; .*another GPU"),
        (
            {"code": {**NORMS[0].request.code, "ops": "1.3.0 " + "ab" * 32}},
            r": code\.ops is '1\.3\.0 [ab]+', and '1\.2\.0 [ab]+' in the bundle; .* install that version, or",
        ),
        (
            {"code": {**NORMS[0].request.code, "acts": "- " + "ab" * 16}},
            r"code\.acts is '- [ab]+', and nothing in the bundle; .* Add this call to the program",
        ),
        (
            {"state": {"environment:OPS_FAST": "1", "ops.norm:UNROLL": 4}, "code": NORMS[0].request.code},
            r": state\.environment:OPS_FAST is '1', and None in the bundle; .*`environment` in its table",
        ),
    ],
)  # fmt: skip
def test_a_miss_says_what_differs_and_what_to_do(
    root: Path, changes: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutlass_aot.programs.serve.explain.sm_count_at_hand", lambda: 132)
    requested = norm(96, **changes).request
    text = explain_miss(requested, [cutlass_aot.open(root)])
    assert text.startswith(
        f"no kernel for ops.norm:Norm.__call__ ({requested.digest[:12]}, {requested.target}) in "
    )
    assert re.search(expected, text), text


def test_a_miss_of_the_same_call_with_code_of_one_more_package_says_what_puts_it_there(root: Path) -> None:
    patched = norm(64, code={**NORMS[0].request.code, "patcher": "1.0 " + "ab" * 32}).request
    text = explain_miss(patched, [cutlass_aot.open(root)])
    assert re.search(r"code\.patcher is '1\.0 [ab]+', and nothing in the bundle\. A package whose code", text)


def test_a_miss_for_a_target_that_the_dsl_took_without_a_gpu_says_so(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutlass_aot.programs.serve.explain.sm_count_at_hand", lambda: None)
    text = explain_miss(norm(96, target="sm_103a").request, [cutlass_aot.open(root)])
    assert "There is no GPU here, so that the DSL has taken sm_103a" in text
    assert "Add sm_103a" not in text


def test_a_miss_of_a_bundle_without_requests_says_so(tmp_path: Path) -> None:
    plain = cutlass_aot.open(write_bundle(tmp_path / "gemm", designs()))
    assert "has no requests of programs" in explain_miss(NORMS[0].request, [plain])


def test_a_machine_that_cannot_load_the_libraries_is_refused(tmp_path: Path) -> None:
    requirements = REQUIREMENTS._replace(glibc="9.99")
    bundle = cutlass_aot.open(write(tmp_path / "b", NORMS, requirements=requirements), check=False)
    assert bundle.requests.count == len(NORMS)
    with pytest.raises(Incompatible, match="glibc"):
        bundle.compiled(NORMS[0].request)
    other = cutlass_aot.open(write(tmp_path / "c", NORMS, hosts=("riscv64",)), check=False)
    with pytest.raises(Incompatible):
        other.compiled(NORMS[0].request)


def with_requests(root: Path, requests: Sequence[CompiledRequest]) -> Path:
    """The bundle with another file of requests in its only group, all digests right."""
    catalog = cutlass_aot.open(root).catalog
    (group,) = catalog.groups
    assert group.requests is not None
    changed = replace(group, requests=bundles.put(root, group.requests.path, requests_to_bytes(requests)))
    parent = replace(catalog, groups=Groups.of([changed])).to_bytes()
    index = bundles.put(root, CATALOG_NAME, parent)
    bundles.write_manifest(root, [*changed.files, *catalog.launchers.values(), index])
    return root


def test_requests_in_another_order_than_the_kernels_are_never_answered(tmp_path: Path) -> None:
    mine = sorted(NORMS[:2], key=lambda requested: requested.request.kernel.name)
    bundle = cutlass_aot.open(with_requests(write(tmp_path / "b", mine), mine[::-1]))
    for requested in mine:
        with pytest.raises(
            CorruptFile, match=r"requests and kernels of cute\.compile-.* do not belong together"
        ):
            bundle.compiled(requested.request)


def test_names_that_are_no_identifiers_are_refused(tmp_path: Path) -> None:
    evil = norm(64, CallByName(("x): import os #",)))
    bundle = cutlass_aot.open(write(tmp_path / "b", [evil]))
    with pytest.raises(CorruptFile, match=r"cannot be called by name .*identifier.*: build the bundle again"):
        bundle.compiled(evil.request)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    root = write(tmp_path / "b", NORMS[:2])
    (path,) = (root / "requests").iterdir()
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    with pytest.raises(CorruptFile, match="truncated"):
        cutlass_aot.open(root).compiled(NORMS[0].request)
    path.unlink()
    with pytest.raises(BundleError, match="is missing"):
        cutlass_aot.open(root).compiled(NORMS[0].request)


def test_kernels_of_requests_are_listed_and_not_launched(root: Path) -> None:
    bundle = cutlass_aot.open(root)
    kernels = bundle.kernels(operation="cute.compile", callable="ops.norm*")
    assert len(kernels) == len(NORMS)
    assert bundle.kernel(NORMS[0].request.digest).name == NORMS[0].request.kernel.name
    for call in (kernels[0].launch, kernels[0].launch.__call__):
        with pytest.raises(LaunchError, match=r"answers a request of a program.*cutlass_aot\.serve"):
            call(1, 2)


def test_operands_find_no_kernel_of_a_request(root: Path) -> None:
    bundle = cutlass_aot.open(root)
    operand = cutlass_aot.describe((64, 64), "f16")
    with pytest.raises(KernelNotFound, match=r"expected operation cute\.compile, got gemm"):
        bundle.find(operand, operand, operand)
    parameters = {"callable": "ops.softmax.softmax"}
    for ask in (bundle.find, bundle.choose):
        with pytest.raises(KernelNotFound, match="answers requests of a program"):
            ask(operation="cute.compile", parameters=parameters)
    assert "answers requests of a program" in str(bundle.explain(operation="cute.compile"))
    assert len(bundle.kernels_of("cute.compile", parameters)) == 1


def test_a_child_process_has_its_own_functions(root: Path) -> None:
    bundle = cutlass_aot.open(root)
    found = bundle.compiled(NORMS[0].request)
    assert found is not None
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            again = bundle.compiled(NORMS[0].request)
            status = 0 if again is not None and again is not found and again.function(1, 1) == 3 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_request_is_found_in_well_below_a_millisecond(root: Path) -> None:
    bundle = cutlass_aot.open(root)
    requested = [replace(NORMS[0].request, options={"opt-level": level}) for level in range(10, 210)]
    assert all(one.digest for one in requested)
    bundle.compiled(requested[0])
    start = time.process_time()
    assert not any(map(bundle.compiled, requested))
    assert (time.process_time() - start) / len(requested) < 1e-3


SERVE = """
import json, sys
import cutlass_aot
from cutlass_aot.schema.requests.request import Request
bundle = cutlass_aot.open({path!r})
before = "cutlass_aot.runtime.opened.request_finder" in sys.modules
found = bundle.compiled(Request.from_bytes(bytes.fromhex({data!r}), "it"))
print(json.dumps([before, found.function(1, 1), sorted(name.partition(".")[0] for name in sys.modules)]))
"""


def test_answering_needs_no_dsl_and_opening_none_of_it(root: Path) -> None:
    body = SERVE.format(path=str(root), data=NORMS[0].request.encoded().hex())
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=True)
    before, result, modules = json.loads(done.stdout)
    assert not before
    assert result == 3
    # TVM-FFI imports torch where it is installed, and torch imports cuda-python.
    assert not {"cutlass", "click", "ziglang"} & set(modules)
