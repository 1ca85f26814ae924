"""Declared kernels that were compiled: relations between extents, 64 bits, None, numbers of a device profile.

There is no GPU: a call that passes the checks of compiled code ends where the driver is asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy
import pytest

import cutlass_aot
from cutlass_aot.errors import DeviceError, OperandError
from cutlass_aot.schema.kernels.constraints import OperandConstraint
from tests.support.bundles import ClaimsCuda

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("an_h200_without_a_driver")]

MODULES = {
    "heads_kernel": """
import cutlass
import cutlass.cute as cute


@cute.kernel
def add_kernel(
    q: cute.Tensor, k: cute.Tensor, starts: cute.Tensor, bias: cute.Tensor, pairs: cute.Tensor,
    out: cute.Tensor, shift: cutlass.Int64, factor: cutlass.Float64, count: cutlass.Int32,
):
    thread, _, _ = cute.arch.thread_idx()
    head, batch, _ = cute.arch.block_idx()
    if thread < 64:
        found = q[batch, head, thread] + k[batch, head // 4, thread] + cutlass.Float32(factor)
        found += pairs[batch // 2, head // 12]
        if cutlass.const_expr(bias is not None):
            found += bias[head]
        out[batch, head, thread] = found + cutlass.Float32(starts[batch + 1] - starts[batch] + shift + count)


@cute.jit
def add(
    q, k, starts, bias, pairs, out,
    shift: cutlass.Int64, factor: cutlass.Float64, count: cutlass.Int32, stream,
):
    add_kernel(q, k, starts, bias, pairs, out, shift, factor, count).launch(
        grid=(q.shape[1], q.shape[0], 1), block=(64, 1, 1), stream=stream
    )
""",
    "heads": """
import cutlass_aot
from cutlass_aot import Operand


@cutlass_aot.kernel(
    name="heads",
    params={"bias": [False, True], "bits": [32, 64]},
    targets=["sm_90a"],
    modules=["heads_kernel"],
)
def heads(bias, bits):
    from heads_kernel import add

    wide = {"extent_bits": bits}
    return add, [
        Operand("q", "f32", ("B", "4*G", 64), **wide),
        Operand("k", "f32", ("B", "G", 64), **wide),
        Operand("starts", "i64", ("B + 1",), **wide),
        Operand("bias", "f32" if bias else None, ("4 * G",), **wide),
        Operand("pairs", "f32", ("B/2", "G / 3"), **wide),
        Operand("out", "f32", ("B", "4 * G", 64), written=True, **wide),
        Operand("shift", "i64", ()),
        Operand("factor", "f64", ()),
        Operand("count", "i32", ()),
    ]
""",
    "filled_kernel": """
import cutlass
import cutlass.cute as cute


@cute.kernel
def fill_kernel(out: cute.Tensor, value: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    out[thread] = value


@cute.jit
def fill(out, value: cutlass.Constexpr, stream):
    count = cutlass.utils.HardwareInfo().get_device_multiprocessor_count()
    fill_kernel(out, value * count).launch(grid=(1, 1, 1), block=(64, 1, 1), stream=stream)


@cute.jit
def plain(out, value: cutlass.Constexpr, stream):
    fill_kernel(out, value).launch(grid=(1, 1, 1), block=(64, 1, 1), stream=stream)
""",
    "filled": """
import cutlass_aot
from cutlass_aot import Operand

OUT = [Operand("out", "i32", (64,), written=True)]


def declare(**more):
    return cutlass_aot.kernel(targets=["sm_90a"], modules=["filled_kernel"], **more)


@declare(name="asks", device=True)
def asks():
    from cutlass.utils import HardwareInfo

    from filled_kernel import fill

    return fill, OUT, (HardwareInfo().get_max_active_clusters(2),)


@declare(name="asks_for_more", device=True)
def asks_for_more():
    from cutlass.utils import HardwareInfo

    from filled_kernel import plain

    return plain, OUT, (HardwareInfo().get_l2_cache_size_in_bytes(),)


@declare(name="asks_unsaid")
def asks_unsaid():
    from filled_kernel import fill

    return fill, OUT, (3,)


@declare(name="never_asks")
def never_asks():
    from filled_kernel import plain

    return plain, OUT, (3,)
""",
}

SCALED = {
    "scaled.py": """
import cutlass_aot
from cutlass_aot import Operand


@cutlass_aot.kernel(name="scaled", targets=["sm_90a"], modules=["filled_kernel"], distributions=["Scale.Kit"])
def scaled():
    from filled_kernel import plain
    from scale_kit.factors import FACTOR

    return plain, [Operand("out", "i32", (64,), written=True)], (FACTOR,)
""",
    "scale_kit/__init__.py": "",
    "scale_kit/factors.py": "FACTOR = 5\n",
    "scale_kit/never_imported.py": "",
    "scale_kit/data/table.json": "[1]",
    "scale_kit-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: scale-kit\nVersion: 1.0\n",
    "scale_kit-1.0.dist-info/RECORD": "".join(
        f"scale_kit/{name},,\n"
        for name in ("__init__.py", "factors.py", "never_imported.py", "data/table.json")
    ),
}
"""A kernel that names a whole distribution, and the distribution as pip would install it."""

BUNDLE = """
plugins = ["{plugin}"]

[bundle]
name = "{name}"
targets = ["sm_90a"]
{device}

[[kernels]]
generator = "{kernel}"
operation = "{kernel}"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("declared_operands")
    for name, text in MODULES.items():
        (made / f"{name}.py").write_text(text)
    return made


def run(folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    return subprocess.run(
        [sys.executable, "-m", "cutlass_aot", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def build(folder, plugin, kernel, device=""):
    name = f"{kernel}{device}".replace("_", "")
    text = BUNDLE.format(
        plugin=plugin, name=name, kernel=kernel, device=f'device = "{device}"' if device else ""
    )
    (folder / f"{name}.toml").write_text(text)
    return folder / "build" / "bundles" / name, run(folder, "build", f"{name}.toml")


@pytest.fixture(scope="module")
def heads(folder):
    """Without a device profile, which these kernels do not ask for."""
    path, done = build(folder, "heads", "heads")
    assert done.returncode == 0, done.stdout + done.stderr
    return cutlass_aot.open(path)


def tensor(dtype, *shape):
    return ClaimsCuda(numpy.zeros(shape, {"f32": "u4", "i64": "u8", "i32": "u4"}[dtype]), dtype)


RIGHT = {
    "q": (3, 8, 64), "k": (3, 2, 64), "starts": (4,), "bias": (8,), "pairs": (2, 1), "out": (3, 8, 64),
    "shift": 2**40, "factor": 1.5, "count": 3,
}  # fmt: skip


def launch(bundle, has_bias, bits, **changed):
    """Call a kernel as a caller does, and its native function as native code does; what each raises."""
    values = {**RIGHT, "bias": RIGHT["bias"] if has_bias else None, **changed}
    operands = [
        tensor("i64" if name == "starts" else "f32", *value) if isinstance(value, tuple) else value
        for name, value in values.items()
    ]
    (kernel,) = [
        item for item in bundle.kernels() if dict(item.kernel.parameters) == {"bias": has_bias, "bits": bits}
    ]
    with pytest.raises((OperandError, DeviceError)) as caught:
        kernel.launch(*operands)
    return kernel, operands, caught.value


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("bias", [False, True])
def test_right_operands_pass_the_checks(heads, bias, bits):
    kernel, operands, error = launch(heads, bias, bits)
    assert isinstance(error, DeviceError), error
    assert "there is no NVIDIA driver" in str(error)
    assert heads.find(*operands, operation="heads", parameters={"bias": bias, "bits": bits}) == [kernel]
    assert kernel.group.operands[0].extent_bits == bits


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            {"k": (3, 4, 64)},
            "operand `k` is unsupported: expected extent G = 2, since `q` has 4 * G = 8, got 4",
        ),
        ({"q": (3, 9, 64)}, "operand `q` is unsupported: expected an extent of 4 * G, got 9"),
        ({"out": (3, 12, 64)}, "operand `out` is unsupported: expected extent 4 * G = 8 as `q` has, got 12"),
        (
            {"starts": (5,)},
            "operand `starts` is unsupported: expected extent B + 1 = 4, since `q` has B = 3, got 5",
        ),
        (
            {"pairs": (1, 1)},
            "operand `pairs` is unsupported: expected extent B / 2 = 2, since `q` has B = 3, got 1",
        ),
        (
            {"pairs": (2, 2)},
            "operand `pairs` is unsupported: expected extent G / 3 = 1, since `q` has 4 * G = 8, got 2",
        ),
        ({"bias": (12,)}, "operand `bias` is unsupported: expected extent 4 * G = 8 as `q` has, got 12"),
        ({"bias": None}, "operand `bias` is unsupported: expected element type f32, got None"),
        (
            {"count": 2**31},
            "operand `count` is unsupported: expected a whole number of 32 bits, got one of type i64",
        ),
        (
            {"shift": 1.5},
            "operand `shift` is unsupported: expected a whole number of 64 bits, got one of type f32",
        ),
    ],
)
def test_what_is_out_of_its_relation_is_refused_natively_and_said_in_words(heads, bits, changed, reason):
    from cutlass_aot.runtime.launching.tensors import to_ffi

    kernel, operands, error = launch(heads, True, bits, **changed)
    assert isinstance(error, OperandError), error
    assert reason in str(error)
    # Not by Python alone: it looks where native code has refused.
    with pytest.raises((TypeError, ValueError), match="argument #"):
        kernel.native_function(0)(*map(to_ffi, operands))


def test_a_tensor_where_the_kernel_has_none_is_refused(heads):
    _, _, error = launch(heads, False, 32, bias=(8,))
    assert "operand `bias` is unsupported: expected None, got f32 (8,) with strides (1,)" in str(error)


def test_what_a_named_extent_is_a_multiple_of_says_nothing_of_its_quotient():
    from cutlass_aot.generators.dsl import extent_divisibilities

    operands = [
        OperandConstraint("a", "f8e4m3", ("M", "K"), -1, 16, 16, multiples=(1, 256)),
        OperandConstraint("a_scale", "f32", ("M", "K / 128"), -2, 4, 16),
        OperandConstraint("k_scale", "f32", ("K / 64",), -1, 2, 8),
    ]
    assert extent_divisibilities(operands) == {"M": 4, "K": 256, "K / 128": 1, "K / 64": 2}


def test_show_says_what_a_kernel_demands(heads, folder):
    (name,) = [
        item.name for item in heads.kernels() if dict(item.kernel.parameters) == {"bias": False, "bits": 64}
    ]
    shown = " ".join(run(folder, "show", "build/bundles/heads", name).stdout.split())
    assert "[B, 4 * G, 64]" in shown
    assert "[B / 2, G / 3]" in shown
    assert "extents of 64 bits" in shown
    assert "None" in shown


def test_hardware_info_is_answered_from_the_device_profile(folder):
    codes = {}
    for device in ("h200", "b200"):
        path, done = build(folder, "filled", "asks", device)
        assert done.returncode == 0, done.stdout + done.stderr
        (kernel,) = cutlass_aot.open(path).kernels()
        constants = dict(kernel.kernel.constants)
        codes[device] = constants["sm_count"], constants["max_active_clusters_2"], kernel.entry.object_sha256
    assert codes["h200"][:2] == (132, 66)
    assert len({sha256 for *_, sha256 in codes.values()}) == 2
    _, again = build(folder, "filled", "asks", "h200")
    assert "up to date" in again.stdout


def test_a_kernel_that_does_not_ask_is_the_same_for_any_device(folder):
    made = set()
    for device in ("", "h200", "b200"):
        path, done = build(folder, "filled", "never_asks", device)
        assert done.returncode == 0, done.stdout + done.stderr
        (kernel,) = cutlass_aot.open(path).kernels()
        assert kernel.kernel.constants == ()
        made.add(kernel.entry.object_sha256)
    assert len(made) == 1


@pytest.mark.parametrize(
    ("kernel", "device", "message"),
    [
        ("asks", "", "bundle.device: missing; kernels[0] compiles numbers of a GPU in (generator 'asks')"),
        (
            "asks_unsaid",
            "h200",
            "asks HardwareInfo for sm_count, which its record lacks: declare 'asks_unsaid' with device=True",
        ),
        (
            "asks_for_more",
            "h200",
            "asks HardwareInfo for l2_cache_bytes, which its record lacks: device profiles do not have it",
        ),
    ],
)
def test_a_question_without_an_answer_is_named(folder, kernel, device, message):
    _, done = build(folder, "filled", kernel, device)
    assert done.returncode
    assert message in done.stdout + done.stderr


def test_an_edit_of_any_file_of_a_distribution_builds_again(folder):
    for name, text in SCALED.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    _, done = build(folder, "scaled", "scaled")
    assert done.returncode == 0, done.stdout + done.stderr
    _, done = build(folder, "scaled", "scaled")
    assert "up to date" in done.stdout
    for name in ("factors.py", "never_imported.py", "data/table.json"):
        path = folder / "scale_kit" / name
        before = path.read_text()
        path.write_text("FACTOR = 6\n")
        shown = run(folder, "plan", "--explain", "scaled.toml").stdout
        assert "1 to build, 0 present" in shown
        assert f"a generator: scaled, file Scale.Kit/scale_kit/{name} has changed" in shown
        if name != "data/table.json":
            path.write_text(before)
    _, done = build(folder, "scaled", "scaled")
    assert "1 compiled" in done.stdout, done.stdout + done.stderr
    assert "0 to build, 1 present" in run(folder, "plan", "scaled.toml").stdout
    record = folder / "scale_kit-1.0.dist-info" / "RECORD"
    (folder / "scale_kit" / "added.py").write_text("")
    record.write_text(record.read_text() + "scale_kit/added.py,,\n")
    shown = run(folder, "plan", "--explain", "scaled.toml").stdout
    assert "scaled, file Scale.Kit/scale_kit/added.py is new" in shown


def test_check_names_a_distribution_of_kernels_that_is_not_declared(folder, monkeypatch):
    site = folder / "site-packages"
    for name, text in SCALED.items():
        if name != "scaled.py":
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(text.replace("scale_kit", "other_kit").replace("scale-kit", "other-kit"))
    for name in ("scale_kit", "scale_kit-1.0.dist-info"):
        (site / name).rename(site / name.replace("scale_kit", "other_kit"))
    (site / "other_kit" / "factors.py").write_text("import cutlass\n\nFACTOR = 5\n")
    (site / "other_kit" / "light.py").write_text("FACTOR = 5\n")
    text = SCALED["scaled.py"].replace("scale_kit", "other_kit").replace('"scaled"', '"{name}"')
    text = text.replace("def scaled", "def {name}").replace('["Scale.Kit"]', "{distributions}")
    for name, distributions, module in (
        ("unnamed", [], "factors"), ("named", ["other-kit"], "factors"), ("light", [], "light"),
    ):  # fmt: skip
        own = text.format(name=name, distributions=distributions).replace(
            "factors import", f"{module} import"
        )
        (folder / f"{name}.py").write_text(own)
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    found = {
        name: json.loads(run(folder, "check", "--json", "--plugin", name, name).stdout)
        for name in ("unnamed", "named", "light")
    }
    assert [(item["what"], item["name"]) for item in found["unnamed"]] == [("distribution", "other-kit")]
    assert found["named"] == found["light"] == []


def test_check_answers_a_kernel_that_asks(folder):
    done = run(folder, "check", "--json", "--plugin", "filled", "asks")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout) == []
