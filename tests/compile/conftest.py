"""Real objects, libraries and bundles for several files of tests: compiled once a session, without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cutlass_aot.builder.link.kernel_object import KernelObject
from cutlass_aot.builder.link.linker import LinkToolchain
from cutlass_aot.errors import DeviceError
from cutlass_aot.runtime.machine import cuda_driver
from tests.support.session import made_once

# A kernel of our own whose registers cannot hold its array on any target, in static shared memory or not,
# and a GEMM on sm_100a for its tensor-core instructions. One process: importing the DSL is most of the time.
_COMPILE = """
import sys
from pathlib import Path
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor, make_ptr
from cutlass.experimental.cuda import TensorMap, TensorMapSwizzle, create_tensor_map_tiled
from cutlass_aot.builder.compile.export import export as export_object

COUNT = 300


@cute.kernel
def mix(values: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    held = cute.make_rmem_tensor(cute.make_layout(COUNT), cutlass.Float32)
    for i in cutlass.range_constexpr(COUNT):
        held[i] = values[thread + i * 128]
    for _ in range(4):
        for i in cutlass.range_constexpr(COUNT):
            held[i] = held[i] * held[(i * 7 + 3) % COUNT] + held[(i * 5 + 1) % COUNT]
    for i in cutlass.range_constexpr(COUNT):
        values[thread + i * 128] = held[i]


@cute.kernel
def scale(values: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    shared = cute.make_tensor(
        cute.arch.alloc_smem(cutlass.Float32, 512), cute.make_layout(512)
    )
    shared[thread] = values[thread]
    cute.arch.sync_threads()
    values[thread] = shared[127 - thread] * 2.0


@cute.jit
def launch_mix(values: cute.Tensor, stream):
    mix(values).launch(grid=(1, 1, 1), block=(128, 1, 1), stream=stream)


@cute.jit
def launch_scale(values: cute.Tensor, stream):
    scale(values).launch(grid=(1, 1, 1), block=(128, 1, 1), stream=stream)


# What a launch asks for, each number another than its default.
@cute.jit
def launch_spread(values: cute.Tensor, stream):
    scale(values).launch(
        grid=(4, 6, 2), block=(64, 2, 1), cluster=(2, 3, 1), smem=3072, use_pdl=True, stream=stream
    )


# A tensor map that host code makes, and the kernel takes as its first parameter.
@cute.kernel
def double(tensor_map: cutlass.GridConstant[TensorMap], values: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    values[thread] = values[thread] * 2.0


@cute.jit
def launch_mapped(values: cute.Tensor, stream):
    rows = cute.size(values) // 64
    tensor_map = create_tensor_map_tiled(
        values.iterator.toint(), cutlass.Float32, (64, rows), (16,), (32, 8), swizzle=TensorMapSwizzle.s128b
    )
    double(tensor_map, values).launch(grid=(1, 1, 1), block=(128, 1, 1), stream=stream)


# Addresses alone say nothing of the device.
@cute.jit
def launch_addressed(start: cute.Pointer, stream):
    scale(cute.make_tensor(start, cute.make_layout(128))).launch(
        grid=(1, 1, 1), block=(128, 1, 1), stream=stream
    )


def export(compiled, name):
    path = Path(sys.argv[1]) / f"{name}.object"
    path.write_bytes(export_object(compiled, name, path.with_suffix(".ll")).to_bytes())


values = make_fake_tensor(cutlass.Float32, (cute.sym_int32(),), (1,))
stream = make_fake_stream(use_tvm_ffi_env_stream=True)
for kernel, target in (
    ("mix", "sm_80"),
    ("scale", "sm_90a"),
    ("spread", "sm_90a"),
    ("mapped", "sm_90a"),
    ("mix", "sm_90a"),
    ("mix", "sm_100a"),
    ("scale", "sm_103a"),
    ("scale", "sm_100f"),
    ("scale", "sm_100"),
):
    function = globals()[f"launch_{kernel}"]
    options = f"--enable-tvm-ffi --gpu-arch {target}"
    compiled = cute.compile(function, values, stream, options=options)
    export(compiled, f"{kernel}_{target}")

pointer = make_ptr(cutlass.Float32, 0, cute.AddressSpace.gmem, assumed_align=16)
export(
    cute.compile(
        launch_addressed, pointer, make_fake_stream(), options="--enable-tvm-ffi --gpu-arch sm_90a"
    ),
    "addressed_sm_90a",
)

import cutlass.operators as operators
import torch


def meta(*shape):
    return torch.empty(*shape, dtype=torch.float16, device="meta")


arguments = operators.GemmArguments(
    meta(1, 256, 128), meta(1, 128, 256), meta(1, 256, 256), accumulator_type=torch.float32
)
found = operators.get_operators(arguments, target_sm="100a")
operator = next(o for o in found if "schedulerCLC" in o.metadata.operator_name)
export(operator.compile(arguments, target_sm="100a").compiled_obj, "gemm_sm_100a")
"""


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kernel objects by the name of their kernel: ``<kernel>_<target>``."""
    directory = made_once(tmp_path_factory, "objects", _compile_objects)
    return {path.stem: path for path in sorted(directory.glob("*.object"))}


def _compile_objects(directory: Path) -> None:
    script = directory / "compile_objects.py"  # the DSL reads the source of what it compiles
    script.write_text(_COMPILE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(directory)],
        env={**os.environ, "CUTE_DSL_ARCH": "sm_120a", "CUDA_VISIBLE_DEVICES": ""},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def toolchain() -> LinkToolchain:
    """What is installed."""
    return LinkToolchain.detect("x86_64")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiler's cache; filling it takes seconds."""
    return made_once(tmp_path_factory, "cache", lambda folder: None)


@pytest.fixture(scope="session")
def compiler(toolchain: LinkToolchain, cache: Path) -> Callable[..., None]:
    """Compile and link sources into a shared library."""

    def run(sources: list[Path], output: Path, *flags: str) -> None:
        caches = str(cache / "zig")
        includes = [part for path in toolchain.includes for part in ("-isystem", str(path))]
        command = [
            str(toolchain.zig),
            "cc",
            "-target",
            "x86_64-linux-gnu.2.28",
            "-O2",
            "-fPIC",
            "-Wall",
            "-Wextra",
            "-Werror",
            *includes,
        ]
        command += ["-shared", "-nostdlib", "-lc", "-ldl", "-Wl,-z,defs", *flags]
        command += [*map(str, sources), "-o", str(output)]
        done = subprocess.run(
            command,
            env={"ZIG_GLOBAL_CACHE_DIR": caches, "ZIG_LOCAL_CACHE_DIR": caches},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr

    return run


@pytest.fixture(scope="session")
def compiled(
    objects: dict[str, Path],
    toolchain: LinkToolchain,
    cache: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    """The compiled host code of each kernel object, for :meth:`LinkToolchain.link`."""
    texts = {symbol: KernelObject.from_bytes(path.read_bytes()).host_code for symbol, path in objects.items()}
    folder = made_once(tmp_path_factory, "compiled", lambda folder: toolchain.compile(texts, folder, cache))
    return {symbol: folder / f"{symbol}-{toolchain.host}.o" for symbol in texts}


@pytest.fixture
def no_gpu() -> None:
    """For calls with host memory that claims to be a GPU's: only a driver that is not there stops them."""
    try:
        cuda_driver.device_count()
    except DeviceError:
        return
    pytest.skip("operands that only claim to be on a GPU must not meet one")


@pytest.fixture
def an_h200_without_a_driver(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "compute_capability", lambda ordinal: (9, 0))
    monkeypatch.setattr(cuda_driver, "driver_version", lambda: (13, 0))
