"""Run a program without a GPU as if there were one, whose properties come from a device profile.

:func:`install` is called in the program's process before its first line. It imports neither torch nor the
DSL: they are patched when the program imports them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.programs.record.fake_tensors import make_tensors_fake
from cutlass_aot.programs.record.gpu_properties import GpuProperties
from cutlass_aot.programs.record.pretend_cuda import answer_for_core, answer_for_driver, answer_for_runtime
from cutlass_aot.programs.record.pretend_nvml import answer_for_nvml
from cutlass_aot.programs.record.pretend_torch import answer_for
from cutlass_aot.programs.start.after_import import AfterImport
from cutlass_aot.programs.start.packages import cache_environment, target_environment
from cutlass_aot.schema.targets import Target

_TRITONS = ("triton", "tokenspeed_triton")
"""Triton, and a copy of it that a package brings."""


def environment(profile: DeviceProfile, target: str) -> dict[str, str]:
    """The environment variables that the program's process needs besides its own."""
    return {
        **target_environment(target, profile.sm_count),
        **cache_environment(),
        # The program must see the GPU of the profile, not a real one.
        "CUDA_VISIBLE_DEVICES": "",
        # torch.compile asks for a driver, to compile what will not run: functions are called as they are.
        "TORCHDYNAMO_DISABLE": "1",
    }


def capability(profile: DeviceProfile, target: str) -> tuple[int, int]:
    """The compute capability that the program sees: the profile's if it runs the target, else the target's.

    The second is for GPUs without a profile, for which another GPU's profile is used.
    """
    parsed = Target.parse(target)
    same = parsed.major == profile.compute_capability[0] and parsed.runs_on(profile.compute_capability)
    return profile.compute_capability if same else (parsed.major, parsed.minor)


def install(profile: DeviceProfile, target: str, *, fake_tensors: bool) -> AfterImport:
    """Make torch, cuda-python and the DSL describe the profile's GPU here, once they are imported.

    Without ``fake_tensors``, only questions about the GPU are answered, and tensors are left to torch.
    :meth:`~AfterImport.end` of the result leaves alone what is imported later.
    """
    gpu = GpuProperties.of(profile, capability(profile, target))

    def pretend_torch(torch: Any) -> None:
        answer_for(torch, gpu)
        if fake_tensors:
            make_tensors_fake(torch)
            _pretend_comparisons(torch)

    hooks: dict[str, Callable[[ModuleType], None]] = {
        "torch": pretend_torch,
        "cutlass.utils.hardware_info": lambda module: _pretend_hardware(module.HardwareInfo, profile, gpu),
        "cuda.bindings.driver": lambda module: answer_for_driver(
            module, gpu, profile.max_active_clusters, context=fake_tensors
        ),
        "cuda.core": lambda module: answer_for_core(module, gpu),
        "cuda.core.experimental": lambda module: answer_for_core(module, gpu),
        "cuda.bindings.runtime": lambda module: answer_for_runtime(module, gpu, context=fake_tensors),
    }
    if fake_tensors:
        hooks["cutlass.operators.utils.tensor"] = _pretend_memory
        for triton in _TRITONS:
            hooks[f"{triton}.runtime.jit"] = lambda module: _no_launches(module.JITFunction)
            hooks[f"{triton}.runtime.autotuner"] = lambda module: _no_launches(module.Autotuner)
    answer_for_nvml(gpu)
    imports = AfterImport(hooks)
    imports.begin()
    return imports


def _no_launches(kernel: Any) -> None:
    """Make Triton's kernels run nothing: there is neither a driver nor data for them."""
    kernel.run = lambda self, *args, **options: None


def _pretend_comparisons(torch: Any) -> None:
    """Make tensors without data close to any: whatever they are, the program goes on the same."""
    fake = sys.modules["torch._subclasses.fake_tensor"].FakeTensor

    def pretended(compare: Any, result: Any) -> Any:
        def compared(*arguments: Any, **named: Any) -> Any:
            if any(isinstance(leaf, fake) for leaf in _leaves((arguments, named))):
                return result
            return compare(*arguments, **named)

        return functools.wraps(compare)(compared)

    torch.testing.assert_close = pretended(torch.testing.assert_close, None)
    torch.allclose = pretended(torch.allclose, True)
    torch.Tensor.allclose = pretended(torch.Tensor.allclose, True)


def _leaves(compared: Any) -> Iterator[Any]:
    """What ``assert_close`` compares, which looks into sequences and mappings."""
    if isinstance(compared, Mapping):
        compared = tuple(compared.values())
    if isinstance(compared, Sequence) and not isinstance(compared, str):
        for one in compared:
            yield from _leaves(one)
    else:
        yield compared


def _pretend_memory(module: Any) -> None:
    """Make NVIDIA's operators accept fake tensors of the pretended GPU as real: else they would not run.

    Fake tensors of a mode that the program has entered itself stay fake to them.
    """
    is_fake = module.is_torch_fake_tensor
    module.is_torch_fake_tensor = lambda tensor: (
        is_fake(tensor) and not getattr(tensor.fake_mode, "is_of_pretended_gpu", False)
    )


def _pretend_hardware(hardware: Any, profile: DeviceProfile, gpu: GpuProperties) -> None:
    """Replace the methods of ``HardwareInfo``, not the class, which programs import by name."""

    def begin(self: Any, device_id: int = 0) -> None:
        self.device_id = device_id

    hardware.__init__ = begin
    hardware._get_device_function = lambda self: None
    hardware.get_max_active_clusters = lambda self, cluster_size, stream=None: profile.active_clusters(
        cluster_size
    )
    hardware.get_device_multiprocessor_count = lambda self: profile.sm_count
    hardware.get_l2_cache_size_in_bytes = lambda self: gpu.L2_cache_size
