"""A GPU that is not there: what torch and the DSL answer, and what a program cannot ask."""

from __future__ import annotations

import pytest

from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.programs.record import fake_tensors, pretend_gpu
from tests.support.forks import Forks

pytestmark = pytest.mark.compile

_BEGIN = """
import sys
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.programs.record import fake_tensors, pretend_gpu

pretend_gpu.install(load_profile("h200"), "sm_90a", fake_tensors={fake})
assert "torch" not in sys.modules and "cutlass" not in sys.modules
import torch
"""


@pytest.fixture(scope="module")
def gpu():
    """A process that has torch, and tensors that are fake."""
    process = Forks(_BEGIN.format(fake=True))
    yield process
    process.close()


def test_questions_about_the_gpu_are_answered_from_the_profile(gpu):
    lines = gpu.run("""
gpu = torch.cuda.get_device_properties(0)
print(torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.current_device())
print(torch.cuda.get_device_capability(), torch.cuda.get_device_name(), gpu.multi_processor_count)
print(gpu.shared_memory_per_block_optin, gpu.warp_size, hasattr(gpu, "gcnArchName"))
stream = torch.cuda.Stream()
print(torch.cuda.current_stream().cuda_stream, stream.cuda_stream, torch.cuda.Event().cuda_event)
with torch.accelerator.device_index(0):
    print(torch.accelerator.current_accelerator(), torch.accelerator.current_device_index())
torch.accelerator.synchronize()
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
""").splitlines()
    assert lines == [
        "True 1 0",
        "(9, 0) NVIDIA H200 132",
        "232448 32 False",
        "0 1048576 1",
        "cuda 0",
        "0 0",
        "30 132",
    ]


def test_memory_pools_and_allocators_are_there_and_idle(gpu):
    lines = gpu.run("""
from torch.cuda import memory
pool = torch.cuda.MemPool(use_on_oom=True)
with torch.cuda.use_mem_pool(pool, device=0), memory.caching_allocator_disabled():
    print(torch.empty(4, device="cuda").device, pool.id, pool.use_count(), pool.snapshot())
own = memory.CUDAPluggableAllocator("none.so", "allocate", "release")
print(memory.MemPool(own.allocator()).id, torch.cuda.change_current_allocator(own))
for module in (torch._C, memory):
    module._cuda_beginAllocateCurrentThreadToPool(0, pool.id)
    module._cuda_endAllocateToPool(0, pool.id)
    module._cuda_releasePool(0, pool.id)
with torch.cuda.graph(torch.cuda.CUDAGraph(), pool=pool.id), torch.accelerator.Graph(pool=pool.id):
    pass
print(torch.cuda.get_allocator_backend(), torch.cuda.get_per_process_memory_fraction())
print(torch.cuda.host_memory_stats(), memory.memory_stats_as_nested_dict(), memory.memory_snapshot())
print(torch.cuda.current_blas_handle(), torch.cuda.Stream.priority_range())
print(torch.cuda.default_generators[0].device, torch.cuda.make_graphed_callables(len, ()) is len)
""").splitlines()
    assert lines == [
        "cuda:0 (0, 1) 1 []", "(0, 2) None", "native 1.0", "{} {} []", "0 (0, -3)", "cpu True",
    ]  # fmt: skip


def test_questions_that_go_through_cuda_python_are_answered_from_the_profile(gpu):
    lines = gpu.run("""
from cuda.bindings import driver
names = driver.CUdevice_attribute

def numbers(*results):
    return [result if isinstance(result, bytes) else int(result) for result in results]

_, device = driver.cuDeviceGet(0)
print(numbers(*driver.cuInit(0), *driver.cuDeviceGetCount(), *driver.cuDeviceGetName(100, device)))
print(numbers(driver.cuDeviceGet(1)[0], *driver.cuDeviceComputeCapability(device)))
print(numbers(*driver.cuDeviceTotalMem(device)))
for name in ("MULTIPROCESSOR_COUNT", "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", "CLUSTER_LAUNCH", "CLOCK_RATE"):
    print(numbers(*driver.cuDeviceGetAttribute(getattr(names, f"CU_DEVICE_ATTRIBUTE_{name}"), device)))
print(numbers(*driver.cuCtxGetCurrent(), *driver.cuCtxSynchronize(), *driver.cuStreamSynchronize(0)))
try:
    driver.cuMemAlloc(16)
except RuntimeError:
    print("no memory")
""").splitlines()
    assert lines == [
        "[0, 0, 1, 0, b'NVIDIA H200']", "[101, 0, 9, 0]", f"[0, {141 << 30}]",
        "[0, 132]", "[0, 232448]", "[0, 1]", "[801, 0]", "[0, 1, 0, 0]", "no memory",
    ]  # fmt: skip


def test_arguments_of_cuda_python_may_have_names(gpu):
    lines = gpu.run("""
from cuda.bindings import driver, runtime
kind = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
print(*map(int, driver.cuInit(Flags=0)), *map(int, driver.cuDeviceGetAttribute(dev=0, attrib=kind)))
kind = runtime.cudaDeviceAttr.cudaDevAttrMultiProcessorCount
print(*map(int, runtime.cudaDeviceGetAttribute(device=0, attr=kind)))
print(*map(int, runtime.cudaStreamCreateWithPriority(priority=-1, flags=0)))
try:
    driver.cuInit()
except TypeError as error:
    print(error)
""").splitlines()
    assert lines == ["0 0 132", "0 132", "0 1048576", "missing a required argument: 'Flags'"]


def test_questions_to_cudas_runtime_are_answered_from_the_profile(gpu):
    lines = gpu.run("""
from cuda.bindings import runtime
kind = runtime.cudaDeviceAttr
print(*map(int, (*runtime.cudaGetDeviceCount(), *runtime.cudaGetDevice(), *runtime.cudaSetDevice(1))))
for name in ("ComputeCapabilityMajor", "MultiProcessorCount", "ClockRate"):
    print(*map(int, runtime.cudaDeviceGetAttribute(getattr(kind, f"cudaDevAttr{name}"), 0)))
error, found = runtime.cudaGetDeviceProperties(0)
print(int(error), found.name.rstrip(bytes(1)), found.major, found.maxThreadsDim, found.l2CacheSize >> 20)
print(int(runtime.cudaGetDeviceProperties(1)[0]), *map(int, runtime.cudaDeviceSynchronize()))
""").splitlines()
    assert lines == [
        "0 1 0 0 101", "0 9", "0 132", "801 0", "0 b'NVIDIA H200' 9 [1024, 1024, 64] 50", "101 0",
    ]  # fmt: skip


def test_questions_to_cuda_core_are_answered_from_the_profile(gpu):
    lines = gpu.run("""
from cuda.core import Device
device = Device()
device.set_current()
print(device.device_id, device.arch, tuple(device.compute_capability), device.name)
properties, gpus = device.properties, Device.get_all_devices()
print(gpus == (device,), {device: 1}[Device(0)])
print(properties.multiprocessor_count, properties.max_shared_memory_per_block_optin)
try:
    Device(1)
except ValueError as error:
    print(error)
""").splitlines()
    refused = "device_id is 1, expected 0: there is one GPU"
    assert lines == ["0 90 (9, 0) NVIDIA H200", "True 1", "132 232448", refused]


def test_questions_to_nvml_are_answered_from_the_profile(gpu):
    """As nvidia-ml-py asks, of which vLLM brings a copy."""
    lines = gpu.run("""
import ctypes, pynvml as nvml
nvml.nvmlInit()
handle, found = nvml.nvmlDeviceGetHandleByIndex(0), nvml.nvmlDeviceGetUUID
print(nvml.nvmlDeviceGetCount(), nvml.nvmlDeviceGetName(handle), nvml.nvmlSystemGetDriverVersion())
print(nvml.nvmlDeviceGetCudaComputeCapability(handle), nvml.nvmlDeviceGetMemoryInfo(handle).total >> 30)
print(nvml.nvmlSystemGetCudaDriverVersion(), nvml.nvmlDeviceGetIndex(handle))
print(found(nvml.nvmlDeviceGetHandleByUUID(found(handle))) == found(handle))
for refused in (
    lambda: nvml.nvmlDeviceGetHandleByIndex(1),
    lambda: nvml.nvmlDeviceGetHandleByUUID("GPU-0"),
    lambda: nvml.nvmlDeviceGetPowerUsage(handle),
):
    try:
        print(refused())
    except nvml.NVMLError as error:
        print(type(error).__name__)
nvml.nvmlShutdown()
""").splitlines()
    assert lines == [
        "1 NVIDIA H200 580.0", "(9, 0) 141", "13000 0", "True",
        "NVMLError_InvalidArgument", "NVMLError_NotFound", "NVMLError_NotSupported",
    ]  # fmt: skip


def test_other_libraries_are_loaded_as_before(gpu):
    lines = gpu.run("""
import ctypes
print(isinstance(ctypes.pythonapi, ctypes.CDLL), isinstance(ctypes.CDLL(None), ctypes.CDLL))
print(ctypes.CDLL(None).getpid() > 0, ctypes.cdll.LoadLibrary("libnvidia-ml.so.1").nvmlShutdown())
try:
    ctypes.CDLL("libnone.so")
except OSError as error:
    print(type(error).__name__)
""").splitlines()
    assert lines == ["True True", "True 0", "OSError"]


def test_streams_events_and_graphs_of_cuda_python_are_there_and_empty(gpu):
    lines = gpu.run("""
from cuda.bindings import driver, runtime
for module, prefix, *names in (
    (driver, "cu", "CUstreamCaptureMode"), (runtime, "cuda", "cudaStreamCaptureMode"),
):
    def call(name, *arguments):
        error, *made = getattr(module, prefix + name)(*arguments)
        assert int(error) == 0, name
        return made[0] if made else None
    flags = (0,) if prefix == "cu" else ()
    stream, start, end = (call(f"{kind}Create", *flags) for kind in ("Stream", "Event", "Event"))
    for event in (start, end):
        call("EventRecord", event, stream)
    call("EventSynchronize", end)
    call("StreamWaitEvent", stream, end, 0)
    call("StreamSynchronize", stream)
    print(int(stream), 1 / call("EventElapsedTime", start, end))
    call("StreamBeginCapture", stream, getattr(module, names[0])(0))
    graph = call("StreamEndCapture", stream)
    executable = call("GraphInstantiate", graph, 0)
    call("GraphLaunch", executable, stream)
    assert getattr(module, prefix + "GraphGetNodes")(graph)[2] == 1
    call("GraphExecDestroy", executable)
    for name, made in (("EventDestroy", start), ("StreamDestroy", stream)):
        call(name, made)
print(int(runtime.cudaGetLastError()[0]))
""").splitlines()
    assert lines == ["1048576 1000.0", "1048576 1000.0", "0"]


def test_what_has_no_data_is_close_to_anything(gpu):
    lines = gpu.run("""
x = torch.ones(4, device="cuda")
torch.testing.assert_close(x, torch.zeros(4))
torch.testing.assert_close(torch.zeros(4), x.cpu(), rtol=0, atol=0)
torch.testing.assert_close([torch.ones(1), x], (torch.zeros(1), x))
torch.testing.assert_close({"out": [x]}, {"out": [torch.zeros(4)]})
print(torch.allclose(x, torch.zeros(4)), x.allclose(other=x), torch.zeros(4).allclose(other=torch.ones(4)))
for actual, expected in (
    (torch.zeros(4), torch.ones(4)), ([torch.zeros(4)], [torch.ones(4)]), ({"out": 1}, {"out": 2}),
    ("a", "b"),
):
    try:
        torch.testing.assert_close(actual, expected)
    except (AssertionError, TypeError) as error:
        print(type(error).__name__)
""").splitlines()
    assert lines == ["True True False", "AssertionError", "AssertionError", "AssertionError", "TypeError"]


def test_what_is_asked_about_clusters_and_limits_is_answered(gpu):
    """As packages do that look for the largest cluster with the DSL's empty kernel."""
    lines = gpu.run("""
from cuda.bindings import driver, runtime
from cutlass.utils import HardwareInfo
hardware = HardwareInfo()
function, config = hardware._get_device_function(), driver.CUlaunchConfig()
kind = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
hardware._checkCudaErrors(driver.cuFuncSetAttribute(function, kind, 1))
print(hardware._checkCudaErrors(driver.cuOccupancyMaxPotentialClusterSize(function, config)))
print(hardware._checkCudaErrors(driver.cuOccupancyMaxActiveClusters(function, config)))
attribute, value = driver.CUlaunchAttribute(), driver.CUlaunchAttributeValue()
attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = 2, 2, 1
attribute.value = value
config.numAttrs, config.attrs = 1, [attribute]
print(hardware._checkCudaErrors(driver.cuOccupancyMaxActiveClusters(function, config)))
print(*map(int, driver.cuCtxGetLimit(driver.CUlimit.CU_LIMIT_STACK_SIZE)))
print(*map(int, runtime.cudaDeviceGetLimit(runtime.cudaLimit.cudaLimitMaxL2FetchGranularity)))
print(*map(int, runtime.cudaDeviceSetLimit(runtime.cudaLimit.cudaLimitStackSize, 2048)))
print(*map(int, driver.cuCtxGetLimit(driver.CUlimit.CU_LIMIT_STACK_SIZE)))
print(type(driver.cuTensorMapEncodeTiled(*[0] * 11)[1]).__name__)
""").splitlines()
    assert lines == ["16", "132", "30", "0 1024", "801 0", "0", "0 2048", "CUtensorMap"]


def test_addresses_of_fake_tensors_do_not_overlap(gpu):
    lines = gpu.run("""
sizes = (1 << 20, 3, 1 << 16, 0, 1 << 24)
tensors = [torch.empty(size, device="cuda", dtype=torch.uint8) for size in sizes]
ranges = sorted((x.data_ptr(), x.data_ptr() + x.numel()) for x in tensors)
print(all(x.untyped_storage().data_ptr() == x.data_ptr() == x[:0].data_ptr() for x in tensors))
print(torch.ones(2).untyped_storage().data_ptr() not in (0, tensors[0].data_ptr()))
print(all(end <= start for (_, end), (start, _) in zip(ranges, ranges[1:])), len(set(ranges)))
print([x.data_ptr() % 512 for x in tensors], tensors[0][7:].data_ptr() - tensors[0].data_ptr())
print([x.data_ptr() for x in tensors] == [x.data_ptr() for x in tensors])
for _ in range(100):  # storages of the same record, one after the other
    x = torch.empty(1 << 20, device="cuda")
    y = torch.empty(1 << 10, device="cuda")
    assert x.data_ptr() + 4 * x.numel() <= y.data_ptr() or y.data_ptr() + 4 * y.numel() <= x.data_ptr()
    del x, y
""").splitlines()
    assert lines == ["True", "True", "True 5", "[0, 0, 0, 0, 0] 7", "True"]


def test_tensors_on_the_gpu_are_fake_and_tensors_on_the_cpu_are_real(gpu):
    lines = gpu.run("""
x = torch.randn(4, 8, device="cuda", dtype=torch.bfloat16)
print((x @ x.T).shape, x.cuda().device, x.data_ptr() % 512, x[1:].data_ptr() % 512)
print(torch.tensor([1, 2]).cumsum(0).tolist(), torch.tensor([1, 2]).to("cuda").device)
print(torch.nn.Linear(8, 4).to("cuda", torch.bfloat16)(x).requires_grad)
print(torch.compile(lambda a: a * 2, backend="eager")(x).device)
""").splitlines()
    assert lines == [
        "torch.Size([4, 4]) cuda:0 0 16", "[1, 3] cuda:0", "True", "cuda:0",
    ]  # fmt: skip


def test_a_question_of_data_is_explained(gpu):
    lines = gpu.run("""
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
""").splitlines()
    assert len(lines) == 7
    for line in lines:
        assert line.startswith("the program asked for something that depends on data which is not there (")
        assert 'set `tensors = "real"` in the table' in line


def test_a_backward_pass_of_autograd_is_explained(gpu):
    (line,) = gpu.run("""
weight = torch.nn.Parameter(torch.randn(4, 4, device="cuda"))
try:
    (weight * 2).sum().backward()
except RuntimeError as error:
    print(fake_tensors.explain_data_dependence(error))
""").splitlines()
    assert line.startswith("the program called torch's autograd, whose backward pass does not run")


def test_other_errors_are_not_explained():
    assert fake_tensors.explain_data_dependence(ValueError("a wrong shape")) is None


def test_operators_of_packages_run_their_implementation(gpu):
    lines = gpu.run("""
@torch.library.custom_op("mine::twice", mutates_args={"out"}, device_types="cuda")
def twice(x: torch.Tensor, out: torch.Tensor) -> None:
    print("ran with", x.device)

@twice.register_fake
def _(x, out):
    print("described")

x = torch.ones(3, device="cuda")
twice(x, torch.empty_like(x))
""").splitlines()
    assert lines == ["ran with cuda:0"]


def test_the_dsl_describes_a_fake_tensor_as_it_does_one_on_a_gpu(gpu):
    lines = gpu.run("""
from cutlass.cute.runtime import from_dlpack
x = torch.empty(4, 8, device="cuda", dtype=torch.bfloat16)
print(from_dlpack(x, assumed_align=16).mark_layout_dynamic(leading_dim=1).__cache_key__[1:])
print(from_dlpack(x.to(torch.float8_e4m3fn)).element_type, from_dlpack(x, enable_tvm_ffi=True).shape)
""").splitlines()
    assert lines == ["(16, 'gmem o (?,?):(?{i64},1)')", "Float8E4M3FN (4, 8)"]


def test_without_fake_tensors_tensors_are_left_to_torch():
    process = Forks(_BEGIN.format(fake=False))
    printed = process.run("print(torch.zeros(2).tolist(), torch.cuda.get_device_name())")
    process.close()
    assert printed == "[0.0, 0.0] NVIDIA H200\n"


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
