"""A GPU that is not there: what torch and the DSL answer, and what a program cannot ask."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.programs.record import fake_tensors, pretend_gpu

pytestmark = pytest.mark.compile

_BEGIN = """
import sys
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.programs.record import fake_tensors, pretend_gpu

pretend_gpu.install(load_profile("h200"), "sm_90a", fake_tensors={fake})
assert "torch" not in sys.modules and "cutlass" not in sys.modules
import torch
"""


def run(program, fake=True):
    """What the program printed, in lines."""
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN.format(fake=fake) + program],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_questions_about_the_gpu_are_answered_from_the_profile():
    lines = run("""
gpu = torch.cuda.get_device_properties(0)
print(torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.current_device())
print(torch.cuda.get_device_capability(), torch.cuda.get_device_name(), gpu.multi_processor_count)
print(gpu.shared_memory_per_block_optin, gpu.warp_size, hasattr(gpu, "gcnArchName"))
stream = torch.cuda.Stream()
with torch.cuda.stream(stream), torch.cuda.device(0):
    stream.wait_stream(torch.cuda.current_stream())
torch.cuda.Event().record()
torch.manual_seed(0)
torch.cuda.synchronize()
print(torch.cuda.current_stream().cuda_stream, torch.cuda.memory_allocated())
import cutlass.utils
from cutlass.utils import HardwareInfo
info = HardwareInfo()
print(info.get_max_active_clusters(4), info.get_device_multiprocessor_count())
""")
    assert lines == ["True 1 0", "(9, 0) NVIDIA H200 132", "232448 32 False", "0 0", "30 132"]


def test_tensors_on_the_gpu_are_fake_and_tensors_on_the_cpu_are_real():
    lines = run("""
x = torch.randn(4, 8, device="cuda", dtype=torch.bfloat16)
print((x @ x.T).shape, x.cuda().device, x.data_ptr() % 512, x[1:].data_ptr() % 512)
print(torch.tensor([1, 2]).cumsum(0).tolist(), torch.tensor([1, 2]).to("cuda").device)
print(torch.nn.Linear(8, 4).to("cuda", torch.bfloat16)(x).requires_grad)
print(torch.compile(lambda a: a * 2, backend="eager")(x).device)
""")
    assert lines == [
        "torch.Size([4, 4]) cuda:0 0 16", "[1, 3] cuda:0", "True", "cuda:0",
    ]  # fmt: skip


def test_a_question_of_data_is_explained():
    lines = run("""
import numpy
x = torch.randn(4, device="cuda")
host = torch.zeros(4)
for ask in (
    lambda: x.sum().item(), lambda: x.tolist(), lambda: x.cpu().numpy(), lambda: bool(x[0]),
    lambda: x.nonzero(), lambda: host.copy_(x), lambda: numpy.asarray(x.cpu()),
):
    try:
        print("gave", ask())
    except Exception as error:
        print(fake_tensors.explain_data_dependence(error))
""")
    assert len(lines) == 7
    for line in lines:
        assert line.startswith("the program asked for something that depends on data which is not there (")
        assert 'set `tensors = "real"` in the table' in line


def test_a_backward_pass_of_autograd_is_explained():
    (line,) = run("""
weight = torch.nn.Parameter(torch.randn(4, 4, device="cuda"))
try:
    (weight * 2).sum().backward()
except RuntimeError as error:
    print(fake_tensors.explain_data_dependence(error))
""")
    assert line.startswith("the program called torch's autograd, whose backward pass does not run")


def test_other_errors_are_not_explained():
    assert fake_tensors.explain_data_dependence(ValueError("a wrong shape")) is None


def test_operators_of_packages_run_their_implementation():
    lines = run("""
@torch.library.custom_op("mine::twice", mutates_args={"out"}, device_types="cuda")
def twice(x: torch.Tensor, out: torch.Tensor) -> None:
    print("ran with", x.device)

@twice.register_fake
def _(x, out):
    print("described")

x = torch.ones(3, device="cuda")
twice(x, torch.empty_like(x))
""")
    assert lines == ["ran with cuda:0"]


def test_the_dsl_describes_a_fake_tensor_as_it_does_one_on_a_gpu():
    lines = run("""
from cutlass.cute.runtime import from_dlpack
x = torch.empty(4, 8, device="cuda", dtype=torch.bfloat16)
print(from_dlpack(x, assumed_align=16).mark_layout_dynamic(leading_dim=1).__cache_key__[1:])
print(from_dlpack(x.to(torch.float8_e4m3fn)).element_type, from_dlpack(x, enable_tvm_ffi=True).shape)
""")
    assert lines == ["(16, 'gmem o (?,?):(?{i64},1)')", "Float8E4M3FN (4, 8)"]


def test_without_fake_tensors_tensors_are_left_to_torch():
    assert run("print(torch.zeros(2).tolist(), torch.cuda.get_device_name())", fake=False) == [
        "[0.0, 0.0] NVIDIA H200"
    ]


@pytest.mark.parametrize(
    ("profile", "target", "seen"),
    [
        ("h200", "sm_90a", (9, 0)),
        ("gb300", "sm_100f", (10, 3)),
        ("gb300", "sm_100a", (10, 0)),
        ("h200", "sm_80", (8, 0)),
    ],
)
def test_the_program_sees_the_gpu_that_the_target_is_for(profile, target, seen):
    assert pretend_gpu.capability(load_profile(profile), target) == seen


def test_the_environment_names_the_target_and_no_gpu_that_is_there():
    environment = pretend_gpu.environment(load_profile("b200"), "sm_100a")
    assert environment["CUTE_DSL_ARCH"] == "sm_100a"
    assert environment["FLASH_ATTENTION_NUM_SMS"] == "148"
    assert environment["QUACK_CACHE_ENABLED"] == "0"
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
