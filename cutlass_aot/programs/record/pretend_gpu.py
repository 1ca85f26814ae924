"""Run a program where there is no GPU as if there were one: questions are answered from a device profile.

:func:`install` is called in the process that is to run the program, before the program's first line. It
imports neither torch nor the DSL: their answers are put in place when the program imports them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.programs.record.fake_tensors import make_tensors_fake
from cutlass_aot.programs.record.gpu_properties import GpuProperties
from cutlass_aot.programs.record.pretend_torch import answer_for
from cutlass_aot.programs.start.after_import import AfterImport
from cutlass_aot.programs.start.packages import cache_environment, target_environment
from cutlass_aot.schema.targets import Target


def environment(profile: DeviceProfile, target: str) -> dict[str, str]:
    """The environment variables that are required in the process of the program besides those it is given.

    Raises:
        ValueError: if ``target`` is not a target.
    """
    return {
        **target_environment(target, profile.sm_count),
        **cache_environment(),
        # A GPU that is there is not to be used: the program has to see the one of the profile.
        "CUDA_VISIBLE_DEVICES": "",
    }


def capability(profile: DeviceProfile, target: str) -> tuple[int, int]:
    """The compute capability that the program sees: the profile's, if the target's code runs on that.

    A profile may stand in for a GPU of another kind, of which no profile exists; then it is the target's own.
    """
    parsed = Target.parse(target)
    same = parsed.major == profile.compute_capability[0] and parsed.runs_on(profile.compute_capability)
    return profile.compute_capability if same else (parsed.major, parsed.minor)


def install(profile: DeviceProfile, target: str, *, fake_tensors: bool) -> AfterImport:
    """Have torch and the DSL answer what the profile says, in this process and from their import on.

    Args:
        profile: the GPU that the program sees.
        target: GPU code target that is compiled for.
        fake_tensors: whether tensors are fake. If not, what the program does with tensors is left to torch,
            and only questions about the GPU are answered.

    Returns:
        What sees to it; :meth:`~AfterImport.end` stops it for what is not imported by then.

    Raises:
        ValueError: if ``target`` is not a target.
    """
    gpu = GpuProperties.of(profile, capability(profile, target))

    def pretend_torch(torch: Any) -> None:
        answer_for(torch, gpu)
        if fake_tensors:
            make_tensors_fake(torch)

    hooks: dict[str, Callable[[ModuleType], None]] = {
        "torch": pretend_torch,
        "cutlass.utils.hardware_info": lambda module: _pretend_hardware(module.HardwareInfo, profile, gpu),
        "cutlass.base_dsl.runtime.cuda": lambda module: _pretend_attributes(module, gpu),
    }
    if fake_tensors:
        hooks["cuda.bindings.driver"] = _pretend_context
        hooks["cutlass.operators.utils.tensor"] = _pretend_memory
        hooks["triton.runtime.jit"] = lambda module: _no_launches(module.JITFunction)
        hooks["triton.runtime.autotuner"] = lambda module: _no_launches(module.Autotuner)
    imports = AfterImport(hooks)
    imports.begin()
    return imports


def _no_launches(kernel: Any) -> None:
    """Have kernels of Triton run nothing: there is neither a driver to compile them for nor data."""
    kernel.run = lambda self, *args, **options: None


def _pretend_context(driver: Any) -> None:
    """Have the driver say that there is a context, as there is one after the first tensor on a GPU."""
    success = driver.CUresult.CUDA_SUCCESS
    driver.cuCtxGetCurrent = lambda: (success, driver.CUcontext(1))
    driver.cuCtxGetDevice = lambda: (success, driver.CUdevice(0))


def _pretend_memory(module: Any) -> None:
    """Have NVIDIA's operators take tensors of the pretended GPU for ones with memory: to run, they need them.

    Fake tensors of a mode that the program has entered itself remain what they are.
    """
    is_fake = module.is_torch_fake_tensor
    module.is_torch_fake_tensor = lambda tensor: (
        is_fake(tensor) and not getattr(tensor.fake_mode, "is_of_pretended_gpu", False)
    )


def _pretend_hardware(hardware: Any, profile: DeviceProfile, gpu: GpuProperties) -> None:
    """Have ``HardwareInfo`` answer. Its methods are replaced, since programs import the class by name."""

    def begin(self: Any, device_id: int = 0) -> None:
        self.device_id = device_id

    hardware.__init__ = begin
    hardware.get_max_active_clusters = lambda self, cluster_size, stream=None: profile.active_clusters(
        cluster_size
    )
    hardware.get_device_multiprocessor_count = lambda self: profile.sm_count
    hardware.get_l2_cache_size_in_bytes = lambda self: gpu.L2_cache_size


def _pretend_attributes(runtime: Any, gpu: GpuProperties) -> None:
    """Have the DSL's own questions answered: it has one of kernels with several blocks a multiprocessor."""
    attributes = {
        "COMPUTE_CAPABILITY_MAJOR": gpu.major,
        "COMPUTE_CAPABILITY_MINOR": gpu.minor,
        "L2_CACHE_SIZE": gpu.L2_cache_size,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": gpu.shared_memory_per_block_optin,
        "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": gpu.shared_memory_per_multiprocessor,
        "MULTIPROCESSOR_COUNT": gpu.multi_processor_count,
        "WARP_SIZE": gpu.warp_size,
    }
    ask = runtime.get_device_attribute

    def answer(attribute: Any, device_id: int = 0) -> Any:
        known = attributes.get(attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_"))
        return ask(attribute, device_id) if known is None else known

    runtime.get_device_attribute = answer
